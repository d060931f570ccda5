"""Graph mode: torch modules called on symbolic tensors."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import thalweg._graph as tf
from parallel_workers import run_together
from sessions import initialized
from thalweg import Variable, named_variables

pytestmark = pytest.mark.usefixtures("graph")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_module_call_is_one_operation_over_variables() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = tf.placeholder("float32", [None, 3])
    y = model(x)
    assert (y.op.name, y.op.type) == ("Sequential", "Sequential")
    assert (y.shape, y.dtype) == ((None, 2), torch.float32)
    names = [v.name for v in tf.trainable_variables()]
    assert names == [f"Sequential/{i}/{n}:0" for i in (0, 2) for n in ("weight", "bias")]
    value = numbers(5, 3)
    expected = model(torch.tensor(value)).detach().numpy()
    np.testing.assert_array_equal(initialized().run(y, {x: value}), expected)


def test_second_module_call_shares_variables() -> None:
    layer = nn.Linear(2, 2)
    first, two = layer(tf.zeros([1, 2])), layer(tf.ones([3, 2]))
    third = nn.Linear(2, 2)(two)
    assert [t.op.name for t in (first, two, third)] == ["Linear", "Linear_1", "Linear_2"]
    prefixes = [v.op.name.split("/")[0] for v in tf.global_variables()]
    assert prefixes == ["Linear", "Linear", "Linear_2", "Linear_2"]


def test_names_from_named_variables_and_name_scopes() -> None:
    layer = nn.Linear(2, 2)
    named_variables([("kernel", layer.weight)])
    with tf.name_scope("top"):
        layer(tf.zeros([1, 2]))
    assert [v.name for v in tf.global_variables()] == ["kernel:0", "top/Linear/bias:0"]


def test_graph_training_does_not_change_the_module() -> None:
    layer = nn.Linear(1, 1, bias=False)
    initial = layer.weight.item()
    w = tf.graph_variable_of(layer.weight)
    session_loss = layer(tf.ones([1, 1])).sum()
    session = initialized()
    session.run(w.assign_sub(tf.gradients(session_loss, w)[0]))
    assert session.run(w) == pytest.approx(initial - 1)
    assert layer.weight.item() == initial


def test_parameters_stand_for_their_variables() -> None:
    layer = nn.Linear(2, 1, bias=False)
    y = layer(tf.ones([1, 2])).sum()
    session = initialized()
    np.testing.assert_array_equal(session.run(layer.weight), layer.weight.detach().numpy())
    assert session.run(y, {layer.weight: [[2, 3]]}) == 5.0
    (gradient,) = tf.gradients(y, [layer.weight])
    np.testing.assert_array_equal(session.run(gradient), [[1, 1]])
    penalty = (layer.weight * tf.constant(2.0)).sum()
    assert session.run(penalty, {layer.weight: [[2, 3]]}) == 10.0


def test_eager_variables_become_variables_of_the_graph() -> None:
    w = Variable([1.0, 2.0], name="mine", constraint=torch.abs)
    y = tf.constant(2.0) * w
    (variable,) = tf.trainable_variables()
    assert (variable.name, variable.constraint) == ("mine:0", torch.abs)
    np.testing.assert_array_equal(initialized().run(y), [2, 4])


def test_small_network_learns() -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    x, y = tf.placeholder("float32", [None, 2]), tf.placeholder("float32", [None, 1])
    loss = nn.functional.mse_loss(model(x), y)
    weights = tf.trainable_variables()
    slopes = tf.gradients(loss, weights)
    train = tf.group(*(w.assign_sub(0.1 * g) for w, g in zip(weights, slopes, strict=True)))
    inputs = numbers(64, 2)
    feeds = {x: inputs, y: inputs.prod(axis=1, keepdims=True)}
    session = initialized()
    losses = [session.run([train, loss], feeds)[1] for _ in range(300)]
    assert losses[-1] < 0.2 * losses[0]

    leaves = [p.detach().clone().requires_grad_() for p in model.parameters()]
    names = [name for name, _ in model.named_parameters()]
    for step in range(3):
        tensors = dict(zip(names, leaves, strict=True))
        output = torch.func.functional_call(model, tensors, (torch.tensor(inputs),))
        eager = nn.functional.mse_loss(output, torch.tensor(feeds[y]))
        assert eager.item() == losses[step]
        for leaf, g in zip(leaves, torch.autograd.grad(eager, leaves), strict=True):
            leaf.data.sub_(0.1 * g)


def test_batch_norm_updates_its_statistics_as_the_module_would() -> None:
    layer = nn.BatchNorm1d(3)
    x = tf.placeholder("float32", [None, 3])
    y = layer(x)
    assert len(tf.trainable_variables()) == 2
    assert len(tf.global_variables()) == 5
    session = initialized()
    value = numbers(8, 3)
    reference = nn.BatchNorm1d(3)
    for _ in range(2):
        got = session.run(y, {x: value})
        np.testing.assert_array_equal(got, reference(torch.tensor(value)).detach().numpy())
    statistics = session.run([v for v in tf.global_variables() if not v.trainable])
    for statistic, buffer in zip(statistics, reference.buffers(), strict=True):
        np.testing.assert_array_equal(statistic, buffer.numpy())
    assert layer.running_mean is not None
    assert not layer.running_mean.any()
    layer.eval(), reference.eval()
    got = session.run(y, {x: value})
    np.testing.assert_array_equal(got, reference(torch.tensor(value)).detach().numpy())
    slope = session.run(tf.gradients(y.sum(), x)[0], {x: value})
    assert slope.shape == (8, 3)


class Counter(nn.Module):
    """Puts a new tensor in the place of its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls = self.calls + 1
        return x * self.calls


def test_replaced_buffer_is_kept_by_the_session() -> None:
    layer = Counter()
    y = layer(tf.constant(2.0))
    session = initialized()
    assert [session.run(y) for _ in range(3)] == [2, 4, 6]
    assert layer.calls == 0


def test_lstm_equals_torch() -> None:
    layer = nn.LSTM(3, 4, num_layers=2, batch_first=True)
    x = tf.placeholder("float32", [None, 5, 3])
    output, (h, c) = layer(x)
    assert output.shape == (None, 5, 4)
    value = numbers(2, 5, 3)
    session = initialized()
    got = session.run([output, h, c], {x: value})
    expected, (eh, ec) = layer(torch.tensor(value))
    for array, tensor in zip(got, (expected, eh, ec), strict=True):
        np.testing.assert_allclose(array, tensor.detach().numpy(), rtol=1e-6)
    gradients = tf.gradients(output.sum(), list(layer.parameters()))
    eager = torch.autograd.grad(expected.sum(), list(layer.parameters()))
    for array, tensor in zip(session.run(gradients, {x: value}), eager, strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-5, atol=1e-6)


def test_dropout_asks_for_its_mode_in_each_run() -> None:
    layer = nn.Dropout(0.5)
    y = layer(tf.ones([1000]))
    session = tf.Session()
    values = session.run(y)
    assert set(values) == {0.0, 2.0}
    assert (session.run(y) != values).any()
    layer.eval()
    np.testing.assert_array_equal(session.run(y), np.ones(1000))


def test_recording_a_module_draws_no_random_numbers() -> None:
    state = torch.get_rng_state()
    nn.Dropout(0.5)(tf.ones([1000]))
    tf.random_normal([3])
    assert torch.equal(torch.get_rng_state(), state)


class Tagger(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 2, sparse=sparse)
        self.out = nn.Linear(2, 1)
        self.unused = nn.Linear(2, 1)

    def forward(self, ids: Any) -> Any:
        return self.out(self.embedding(ids))


@pytest.mark.parametrize("sparse", [True, False])
def test_sparse_embedding_has_slice_gradients(sparse: bool) -> None:
    model = Tagger(sparse)
    ids = tf.placeholder("int64", [None])
    table = model.embedding.weight
    gradient, of_layer, missing, _ = tf.gradients(
        model(ids).sum(), [table, model.out.weight, *model.unused.parameters()]
    )
    assert isinstance(gradient, tf.SymbolicSlices) == sparse
    assert isinstance(of_layer, tf.SymbolicTensor)
    assert missing is None
    got = initialized().run(gradient, {ids: [7, 1, 7]})
    dense = np.zeros((10, 2), np.float32)
    weight = model.out.weight.detach().numpy()[0]
    np.add.at(dense, [7, 1, 7], weight)
    if sparse:
        assert got.indices.tolist() == [7, 1, 7]
        np.testing.assert_array_equal(got.values, np.tile(weight, (3, 1)))
    else:
        np.testing.assert_array_equal(got, dense)


class Tied(nn.Module):
    """Reads its embedding's weights in a second way, which nothing tells beforehand."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2, sparse=True)

    def forward(self, ids: Any) -> Any:
        return self.embedding(ids) @ self.embedding.weight.T


def test_embedding_rows_and_whole_table_share_a_gradient() -> None:
    model = Tied()
    (slices,) = tf.gradients(model(tf.constant([1, 1])).sum(), [model.embedding.weight])
    values, indices, _ = initialized().run(slices)
    expected = torch.autograd.grad(
        model(torch.tensor([1, 1])).sum(), model.embedding.weight, retain_graph=False
    )[0]
    assert indices.tolist() == [0, 1, 2]
    np.testing.assert_allclose(values, expected.to_dense().numpy(), rtol=1e-6)


class Shared(nn.Module):
    """Two layers with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
        self.two.weight = self.one.weight

    def forward(self, x: Any, *, scale: Any = None) -> dict[str, Any]:
        return {"out": self.two(self.one(x)) * scale, "static": 3}


def test_shared_weights_and_nested_arguments_are_supported() -> None:
    model = Shared()
    result = model(tf.ones([1, 2]), scale=tf.constant(2.0))
    assert result["static"] == 3
    assert len(tf.trainable_variables()) == 3
    expected = model(torch.ones(1, 2), scale=2.0)["out"]
    np.testing.assert_allclose(initialized().run(result["out"]), expected.detach().numpy())


def test_frozen_parameters_are_not_trained() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    y = layer(tf.ones([1, 2]))
    assert [v.op.name for v in tf.trainable_variables()] == ["Linear/weight"]
    (gradient,) = tf.gradients(y, layer.bias)
    np.testing.assert_array_equal(initialized().run(gradient), [1, 1])


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))

    def forward(self, x: Any) -> Any:
        return x * self.a * self.b if self.training else x * self.a


def test_gradient_is_none_in_runs_that_do_not_use_the_parameter() -> None:
    model = Branching()
    gradients = tf.gradients(model(tf.constant(2.0)), [model.a, model.b])
    zeroed = tf.gradients(model(tf.constant(2.0)), [model.b], unconnected_gradients="zero")
    session = initialized()
    assert session.run(gradients) == [2.0, 2.0]
    model.eval()
    assert session.run(gradients) == [2.0, None]
    assert session.run(zeroed) == [0.0]


def test_shapes_are_checked_when_the_module_is_called() -> None:
    with pytest.raises(ValueError, match=r"Linear: .*have the shapes"):
        nn.Linear(3, 4)(tf.zeros([2, 5]))


def test_modules_called_on_tensors_stay_eager(graph: tf.Graph) -> None:
    layer = nn.Linear(2, 2)
    assert isinstance(layer(torch.ones(1, 2)), torch.Tensor)
    assert graph.get_operations() == []


def test_interception_ends_with_the_last_graph() -> None:
    call = nn.Module.__call__
    with tf.Graph().as_default():
        assert nn.Module.__call__ is call
    assert nn.Module.__call__ is call
    outputs: list[Any] = []

    def elsewhere() -> None:
        outputs.append(nn.Linear(1, 1)(torch.ones(1, 1)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert isinstance(outputs[0], torch.Tensor)


def test_threads_can_share_a_module() -> None:
    model = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
    x = tf.placeholder("float32", [None, 4])
    loss = (model(x) ** 2).mean()
    weights = tf.trainable_variables()
    slopes = tf.gradients(loss, weights)
    train = tf.group(*(w.assign_sub(0.01 * g) for w, g in zip(weights, slopes, strict=True)))
    sessions = [initialized(), initialized()]

    def work(number: int) -> None:
        for _ in range(20):
            sessions[number % 2].run(train, {x: numbers(16, 4)})

    run_together(*(partial(work, number) for number in range(4)))
    counts = [v for v in tf.global_variables() if "num_batches" in v.name]
    assert [session.run(counts[0]) for session in sessions] == [40, 40]


def test_in_place_module_does_not_change_its_input() -> None:
    x = tf.placeholder("float32", [3])
    w = tf.Variable([-1.0, 1.0])
    y, z = nn.ReLU(inplace=True)(x), x * 1
    tensor = torch.tensor([-1.0, 2.0, 3.0])
    got = initialized().run([y, z, nn.ReLU(inplace=True)(w), w], {x: tensor})
    assert [list(v) for v in got] == [[0, 2, 3], [-1, 2, 3], [0, 1], [-1, 1]]
    assert tensor[0] == -1


def test_attention_returns_output_and_weights() -> None:
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    x = tf.placeholder("float32", [None, 3, 4])
    output, weights = layer(x, x, x)
    output2, missing = layer(x, x, x, need_weights=False)
    assert missing is None
    value = numbers(2, 3, 4)
    got = initialized().run([output, weights, output2], {x: value})
    expected = layer(*[torch.tensor(value)] * 3)
    for array, tensor in zip(got, (*expected, expected[0]), strict=True):
        np.testing.assert_allclose(array, tensor.detach().numpy(), rtol=1e-5, atol=1e-7)


def test_second_derivatives_through_a_module() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    x = tf.placeholder("float32", [None, 2])
    (slope,) = tf.gradients(model(x).sum(), x)
    (second,) = tf.gradients((slope * slope).sum(), model[0].weight)
    value = numbers(4, 2)
    leaf = torch.tensor(value, requires_grad=True)
    (eager,) = torch.autograd.grad(model(leaf).sum(), leaf, create_graph=True)
    (expected,) = torch.autograd.grad((eager * eager).sum(), model[0].weight)
    got = initialized().run(second, {x: value})
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5)

"""Keras optimizers in graph mode: the numbers of eager mode, and weights for each session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from thalweg import _graph as tf1
from thalweg.errors import FailedPreconditionError
from thalweg.keras import optimizers

MAKERS: dict[str, Any] = {
    "SGD": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam": lambda: optimizers.Adam(0.1, amsgrad=True),
    "Adamax": lambda: optimizers.Adamax(0.1),
    "Nadam": lambda: optimizers.Nadam(0.1),
    "Adagrad": lambda: optimizers.Adagrad(0.1),
    "Adadelta": lambda: optimizers.Adadelta(0.1),
    "RMSprop": lambda: optimizers.RMSprop(0.1, momentum=0.9, centered=True),
    "Ftrl": lambda: optimizers.Ftrl(0.1),
    "clipped": lambda: optimizers.Adam(0.1, global_clipnorm=0.5),
    "scheduled": lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.5, 2, 0.5)),
}
ROWS = [1, 4, 1]


def start() -> tuple[np.ndarray, np.ndarray]:
    seed = np.random.default_rng(0)
    return (
        seed.normal(size=(6, 4)).astype(np.float32),
        seed.normal(size=(4, 3)).astype(np.float32),
    )


def loss(table: Any, w: Any) -> Any:
    rows = tf1.embedding_lookup if tf1.is_symbolic(table) else thalweg.embedding_lookup
    return torch.tanh(rows(table, torch.tensor(ROWS)) @ w).square().sum()


def eager(make: Any, steps: int) -> list[Any]:
    table, w = (thalweg.Variable(value) for value in start())
    opt = make()
    for _ in range(steps):
        opt.minimize(lambda: loss(table, w), [table, w])
    return [table.numpy(), w.numpy(), *opt.get_weights()]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", list(MAKERS))
def test_a_session_takes_the_steps_of_eager_mode(kind: str) -> None:
    with tf1.Graph().as_default():
        table, w = (tf1.Variable(value) for value in start())
        opt = MAKERS[kind]()
        train = opt.minimize(loss(table, w), [table, w])
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            counts = []
            for _ in range(4):
                session.run(train)
                counts.append(int(session.run(opt.iterations)))
            got = [*session.run([table, w]), *opt.get_weights()]
    expected = eager(MAKERS[kind], 4)
    assert counts == [1, 2, 3, 4]
    assert len(got) == len(expected)
    for array, expected_array in zip(got, expected, strict=True):
        np.testing.assert_array_equal(array, expected_array)


def test_a_callable_loss_is_called_when_the_graph_is_built() -> None:
    with tf1.Graph().as_default():
        w = tf1.Variable([1.0, 2.0])
        opt = optimizers.SGD(0.5)
        op = opt.minimize(lambda: (w * w).sum(), var_list=lambda: [w])
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            op.run()
            assert session.run(w).tolist() == [0.0, 0.0]


def test_each_session_counts_separately() -> None:
    with tf1.Graph().as_default():
        w = tf1.Variable(8.0)
        opt = optimizers.SGD(1.0, momentum=0.5)
        train = opt.minimize(1.0 * w, [w])
        init = tf1.global_variables_initializer()
        first, second = tf1.Session(), tf1.Session()
        for session, steps in ((first, 3), (second, 1)):
            session.run(init)
            for _ in range(steps):
                session.run(train)
        assert (first.run(opt.iterations), second.run(opt.iterations)) == (3, 1)
        assert (first.run(w), second.run(w)) == (8 - 1 - 1.5 - 1.75, 7)


def test_get_gradients_and_get_updates_build_operations() -> None:
    with tf1.Graph().as_default():
        w = tf1.Variable([3.0, 4.0])
        opt = optimizers.SGD(1.0, clipnorm=1.0)
        grads = opt.get_gradients((w * w).sum() / 2, [w])
        updates = opt.get_updates((w * w).sum() / 2, [w])
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            assert session.run(grads[0]).tolist() == [3.0, 4.0]
            session.run(updates)
            w_once = np.float32([3, 4]) - np.float32([3, 4]) / np.float32(5)
            np.testing.assert_array_equal(session.run(w), w_once)
        with pytest.raises(ValueError, match="has `None` for gradient"):
            opt.get_gradients((w * w).sum(), [tf1.Variable(1.0)])


def test_placeholder_can_be_the_learning_rate() -> None:
    with tf1.Graph().as_default():
        rate = tf1.placeholder("float32", [])
        w = tf1.Variable(1.0)
        train = optimizers.SGD(rate).minimize(2.0 * w, [w])
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(train, {rate: 0.25})
            session.run(train, {rate: 1.0})
            assert session.run(w) == 1 - 0.5 - 2


@pytest.mark.parametrize("kind", ["number", "tensor of the graph"])
def test_a_callable_is_called_when_the_graph_is_built(kind: str) -> None:
    calls: list[int] = []
    with tf1.Graph().as_default():
        fed_rate = tf1.placeholder_with_default(0.25, [])

        def rate() -> Any:
            calls.append(1)
            return 0.25 * len(calls) if kind == "number" else fed_rate

        w = tf1.Variable(8.0)
        opt = optimizers.SGD(rate)
        first, second = (opt.minimize(1.0 * w, [w]) for _ in range(2))
        assert len(calls) == 2
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for train in (first, first, second):
                session.run(train)
            assert session.run(w) == 8 - 0.25 * (4 if kind == "number" else 3)
            assert len(calls) == 2


@pytest.mark.parametrize("value", [10**400, "fast", torch.ones(2)], ids=["huge", "text", "shape"])
def test_non_numeric_callable_raises_when_the_graph_is_built(value: Any) -> None:
    with tf1.Graph().as_default():
        w = tf1.Variable(8.0)
        count = len(tf1.get_default_graph().get_operations())
        with pytest.raises(ValueError, match=r"^learning_rate "):
            optimizers.SGD(lambda: value).apply_gradients([(torch.tensor(1.0), w)])
        assert len(tf1.get_default_graph().get_operations()) == count


def test_graph_variable_can_be_the_learning_rate() -> None:
    with tf1.Graph().as_default():
        w, rate = tf1.Variable(8.0), tf1.Variable(1.0, trainable=False)
        train = optimizers.SGD(rate).minimize(1.0 * w, [w])
        halve = rate.assign(0.5)
        with tf1.Session() as session, tf1.Session() as second:
            for any_session in (session, second):
                any_session.run(tf1.global_variables_initializer())
            session.run(halve)
            for any_session in (session, second):
                any_session.run(train)
            assert (session.run(w), second.run(w)) == (7.5, 7.0)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_iterations_may_be_the_global_step(dtype: Any) -> None:
    with tf1.Graph().as_default():
        w, step = tf1.Variable(8.0), tf1.Variable(dtype(0), name="global_step", trainable=False)
        opt = optimizers.SGD(optimizers.schedules.InverseTimeDecay(1.0, 1, 1.0))
        opt.iterations = step
        train = opt.minimize(1.0 * w, [w])
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run([train])
            session.run([train])
            assert session.run(step) == session.run(opt.iterations) == 2
            assert session.run(w) == 8 - 1 - 0.5
            assert opt.get_weights() == [2]


@pytest.mark.parametrize("wrong", [0.0, [0, 0]])
def test_iterations_of_a_graph_are_an_integer_scalar(wrong: Any) -> None:
    with tf1.Graph().as_default(), pytest.raises(TypeError, match="must be an integer scalar"):
        optimizers.SGD(0.1).iterations = tf1.Variable(wrong)


def test_weights_are_read_and_set_in_the_default_session() -> None:
    with tf1.Graph().as_default():
        w = tf1.Variable([1.0, 1.0], name="w")
        opt = optimizers.Adam(0.1)
        train = opt.minimize(w.sum(), [w])
        assert [weight.name for weight in opt.weights] == [
            "Adam/iter:0",
            "Adam/w/m:0",
            "Adam/w/v:0",
        ]
        with pytest.raises(RuntimeError, match="inside `with session:`"):
            opt.get_weights()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(train)
            weights = opt.get_weights()
            session.run(train)
            opt.set_weights(weights)
            assert session.run(opt.iterations) == 1


@pytest.mark.parametrize("stepped", [False, True], ids=["new", "stepped"])
def test_the_state_of_a_graph_is_in_its_sessions(stepped: bool) -> None:
    eager = optimizers.Adam(0.1)
    state = eager.state_dict()
    with tf1.Graph().as_default():
        w = tf1.Variable([1.0, 1.0], name="w")
        opt = optimizers.Adam(0.1)
        if stepped:
            opt.minimize(w.sum(), [w])
        weight_count = len(opt.weights)
        with pytest.raises(FailedPreconditionError, match=r"by thalweg\.v1\.train\.Saver"):
            opt.state_dict()
        with pytest.raises(FailedPreconditionError, match=r"by thalweg\.v1\.train\.Saver"):
            opt.load_state_dict(state, [w])
        assert len(opt.weights) == weight_count
        assert eager.state_dict()["iterations"] == 0  # made outside of the graph


def test_plain_torch_subclass_runs_in_a_graph() -> None:
    class Signs(optimizers.Optimizer):
        def __init__(self) -> None:
            super().__init__("Signs")
            self._set_hyper("learning_rate", 0.5)

        def _create_slots(self, var_list: Any) -> None:
            for var in var_list:
                self.add_slot(var, "seen")

        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
            self.get_slot(var, "seen").add_(1)
            var.sub_(self._decayed_lr(var.dtype) * torch.sign(grad))

    with tf1.Graph().as_default():
        w = tf1.Variable([1.0, -2.0])
        opt = Signs()
        train = opt.minimize((w * w).sum(), [w])
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(train)
            session.run(train)
            assert session.run(w).tolist() == [0.0, -1.0]
            assert session.run(opt.get_slot(w, "seen")).tolist() == [2.0, 2.0]


def test_non_variable_of_the_graph_raises() -> None:
    with tf1.Graph().as_default():
        w = tf1.Variable(1.0)
        with pytest.raises(NotImplementedError, match="Trying to update a Tensor"):
            optimizers.SGD(0.1).apply_gradients([(1.0, w * 2)])
        with pytest.raises(ValueError, match="No gradients provided for any variable"):
            optimizers.SGD(0.1).apply_gradients([(None, w)])


def test_get_gradients_by_a_tensor_that_is_not_a_variable() -> None:
    with tf1.Graph().as_default():
        x, opt = tf1.constant(3.0), optimizers.SGD(0.1)
        (grad,) = opt.get_gradients(x * x, [x])
        pairs = opt._compute_gradients(lambda: x * x, [x])
        with tf1.Session() as session:
            assert session.run([grad, pairs[0][0]]) == [6.0, 6.0]
        with pytest.raises(NotImplementedError, match="Trying to update a Tensor"):
            opt.apply_gradients(pairs)

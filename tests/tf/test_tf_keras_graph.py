"""Layers and models of Keras in graphs: the numbers of eager mode, and values for each session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf.compat.v1 as tf
from sessions import initialized
from thalweg._base.execution_context import eagerly
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.tf import keras

pytestmark = [
    pytest.mark.usefixtures("with_keras"),
    pytest.mark.usefixtures("graph"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
K = keras.backend
ROWS = np.array([[0, 2], [1, 2], [2, 2]], np.int32)
NUMBERS = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
LABELS = np.array([[1.0], [-1.0], [0.5]], np.float32)


def small() -> Any:
    """A functional model of two inputs."""
    rows, numbers = keras.layers.Input((2,), dtype="int32"), keras.layers.Input((4,))
    table = keras.layers.Flatten()(keras.layers.Embedding(3, 2)(rows))
    activation = keras.layers.Dense(3, activation="tanh")(numbers)
    features = keras.layers.Concatenate()([table, activation])
    return keras.models.Model([rows, numbers], keras.layers.Dense(1)(features))


def distance(predictions: Any, labels: Any) -> Any:
    return tf.reduce_mean(tf.square(predictions - labels))


def v1_minimize(model: Any, loss: Any) -> Any:
    return tf.train.AdamOptimizer(0.1).minimize(loss, var_list=model.trainable_variables)


def v1_apply(model: Any, loss: Any) -> Any:
    variables = model.trainable_variables
    pairs = zip(tf.gradients(loss, variables), variables, strict=True)
    return tf.train.AdamOptimizer(0.1).apply_gradients(pairs)


def keras_minimize(model: Any, loss: Any) -> Any:
    return keras.optimizers.Adam(0.1).minimize(loss, model.trainable_variables)


def keras_apply(model: Any, loss: Any) -> Any:
    optimizer, variables = keras.optimizers.Adam(0.1), model.trainable_variables
    gradients = optimizer.get_gradients(loss, variables)
    return optimizer.apply_gradients(zip(gradients, variables, strict=True))


@pytest.mark.parametrize("train", [v1_minimize, v1_apply, keras_minimize, keras_apply])
def test_a_session_trains_as_eager_mode_does(train: Callable[..., Any]) -> None:
    model = small()
    labels = tf.placeholder(tf.float32, [None, 1])
    loss = distance(model.outputs[0], labels)
    step = train(model, loss)
    session, losses = initialized(), []
    feeds = {model.inputs[0]: ROWS, model.inputs[1]: NUMBERS, labels: LABELS}
    for _ in range(4):
        losses.append(session.run([loss, step], feeds)[0])
    expected: list[float] = []

    def compute() -> Any:
        loss = distance(model([torch.tensor(ROWS), torch.tensor(NUMBERS)]), torch.tensor(LABELS))
        expected.append(loss.item())
        return loss

    is_v1 = train in (v1_minimize, v1_apply)
    optimizer: Any = (tf.train.AdamOptimizer if is_v1 else keras.optimizers.Adam)(0.1)
    with eagerly():
        for _ in range(4):
            optimizer.minimize(compute, var_list=model.trainable_variables)
    np.testing.assert_array_equal(losses, np.array(expected, np.float32))
    for got, weight in zip(session.run(model.variables), model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, weight)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_a_model_on_an_array_is_a_tensor_of_the_graph(kind: Callable[..., Any]) -> None:
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.1)
    step = optimizer.minimize(lambda: distance(model(kind(NUMBERS)), LABELS), lambda: model.weights)
    session = initialized()
    values_before = session.run([*model.weights, optimizer.get_slot(model.weights[0], "m")])
    assert len(values_before) == 5
    assert not values_before[-1].any()
    session.run(step)
    weights_after = session.run(model.weights)
    assert all((old != new).any() for old, new in zip(values_before, weights_after, strict=False))


@pytest.mark.parametrize("name", ["mean_squared_error", "MSE", "huber", "squared_hinge"])
def test_losses_of_keras_take_tensors_of_the_graph(name: str) -> None:
    model, labels = keras.Sequential([keras.layers.Dense(1)]), LABELS.astype(np.float64)
    predictions = model(NUMBERS)
    loss = getattr(keras.losses, name)(labels, predictions)
    assert loss.dtype == torch.float32
    assert tuple(loss.shape) == (3,)
    step = keras.optimizers.SGD(0.1).minimize(lambda: loss, lambda: model.trainable_weights)
    session = initialized()
    values = session.run([predictions, loss])
    with eagerly():
        expected = getattr(keras.losses, name)(torch.tensor(labels), torch.tensor(values[0]))
    np.testing.assert_array_equal(values[1], expected)
    session.run(step)
    assert session.run(loss).sum() < values[1].sum()


def test_shapes_are_left_to_keras() -> None:
    model = keras.Sequential([keras.layers.Dense(2)])
    model.build((None, 4))  # computes with tensors, which are not the graph's
    assert len(model.weights) == 2
    assert tf.get_default_graph().get_operations() == []


@pytest.mark.parametrize("make", [tf.train.AdamOptimizer, keras.optimizers.Adam])
def test_slots_are_found_by_variables_of_keras(make: Callable[..., Any]) -> None:
    model, optimizer = small(), make(0.1)
    labels = tf.placeholder(tf.float32, [None, 1])
    loss = distance(model.outputs[0], labels)
    optimizer.minimize(loss, var_list=model.trainable_variables)
    first = model.trainable_variables[0]
    assert optimizer.get_slot(first, "m") is optimizer.get_slot(tf.trainable_variables()[0], "m")
    assert tuple(optimizer.get_slot(first, "m").shape) == tuple(first.shape)


def test_keras_model_has_graph_tensors_and_variables() -> None:
    source = keras.layers.Input((4,), name="numbers")
    model = keras.models.Model(source, keras.layers.Dense(2, name="last")(source))
    output = tf.identity(model.outputs[0], name="found")
    assert (output.dtype, tuple(output.shape)) == (torch.float32, (None, 2))
    assert [v.name for v in tf.trainable_variables()] == ["last/kernel:0", "last/bias:0"]
    K.set_session(None)
    session = K.get_session()  # initializes variables of Keras
    tf.get_default_graph().finalize()  # no second call, no second placeholder
    np.testing.assert_array_equal(
        session.run(model.outputs[0], {model.inputs[0]: NUMBERS}),
        session.run(output, {"numbers:0": NUMBERS}),
    )


def twice() -> Any:
    class Twice(keras.Model):
        """A model without inputs of its own, whose layers are built as it is called."""

        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, inputs: Any) -> Any:
            return {"once": self.dense(inputs), "twice": (2 * self.dense(inputs), inputs)}

    return Twice()


def test_model_can_be_called_on_a_placeholder() -> None:
    x = tf.placeholder(tf.float32, [None, 4])
    model = twice()
    output = model(x)
    assert tuple(output["once"].shape) == (None, 2)
    kernel, bias = model.trainable_variables
    by_x, by_kernel = tf.gradients(output["twice"][0], [x, kernel])
    values = initialized().run([output, by_x, by_kernel], {x: NUMBERS})
    expected = NUMBERS @ kernel.numpy() + bias.numpy()
    np.testing.assert_allclose(values[0]["once"], expected, rtol=1e-5)
    np.testing.assert_array_equal(values[0]["twice"][0], 2 * values[0]["once"])
    np.testing.assert_array_equal(values[0]["twice"][1], NUMBERS)
    np.testing.assert_allclose(values[1][0], 2 * kernel.numpy().sum(1), rtol=1e-5)
    np.testing.assert_allclose(values[2][:, 0], 2 * NUMBERS.sum(0), rtol=1e-5)


def test_sessions_have_separate_values_and_graphs_separate_symbols() -> None:
    model = small()
    weights_before = model.get_weights()
    kernel = model.trainable_variables[1]
    loss = keras.ops.sum(model.outputs[0])
    step = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
    feeds = dict(zip(model.inputs, (ROWS, NUMBERS), strict=True))
    session, two = initialized(), initialized()
    session.run(step, feeds)
    assert session.run(loss, feeds) < two.run(loss, feeds)
    assert not np.array_equal(*(session.run(kernel) for session in (session, two)))
    for weight, first in zip(model.get_weights(), weights_before, strict=True):
        np.testing.assert_array_equal(weight, first)
    with tf.Graph().as_default():
        second_loss = tf.identity(loss)
        assert initialized().run(second_loss, feeds) == two.run(loss, feeds)
        with pytest.raises(InvalidArgumentError, match="not an element of this graph"):
            tf.get_default_graph().as_graph_element(session.graph.symbol_of(loss))


def test_layer_statistics_are_kept_per_session() -> None:
    x = tf.placeholder(tf.float32, [None, 4])
    layer = keras.layers.BatchNormalization(momentum=0.5)
    normalized = layer(x, training=True)
    moving = layer.moving_mean
    session, two = initialized(), initialized()
    for _ in range(2):
        session.run(normalized, {x: NUMBERS})
    np.testing.assert_allclose(session.run(moving), 0.75 * NUMBERS.mean(0), rtol=1e-5)
    np.testing.assert_array_equal(two.run(moving), np.zeros(4))
    np.testing.assert_array_equal(moving.numpy(), np.zeros(4))
    np.testing.assert_allclose(session.run(normalized, {x: NUMBERS}).mean(0), 0, atol=1e-6)
    frozen = layer(x)
    expected = (NUMBERS - session.run(moving)) / np.sqrt(session.run(layer.moving_variance) + 1e-3)
    np.testing.assert_allclose(session.run(frozen, {x: NUMBERS}), expected, rtol=1e-4, atol=1e-6)


def test_dropout_draws_again_in_each_run() -> None:
    noisy = keras.layers.Dropout(0.5)(tf.ones([1, 100]), training=True)
    session = initialized()
    first, second = session.run(noisy), session.run(noisy)
    assert set(np.unique(first)) == {0.0, 2.0}
    assert not np.array_equal(first, second)


def test_masks_pass_from_layer_to_layer() -> None:
    rows = keras.layers.Input((2,), dtype="int32")
    table = keras.layers.Embedding(3, 2, mask_zero=True)
    means = keras.layers.GlobalAveragePooling1D()(table(rows))
    tf.identity(means)
    values = initialized().run(means, {rows: ROWS})
    np.testing.assert_array_equal(values[0], table.get_weights()[0][2])


def test_operators_combine_keras_outputs_and_symbols() -> None:
    source = keras.layers.Input((4,))
    doubled = 2 * source
    x = tf.placeholder(tf.float32, [3, 4])
    tensors = [doubled - x, x - doubled, doubled / x, doubled < x, tf.maximum(x, doubled)]
    values = tf.Session().run(tensors, {source: NUMBERS, x: NUMBERS})
    np.testing.assert_array_equal(values[0], NUMBERS)
    np.testing.assert_array_equal(values[1], -NUMBERS)
    np.testing.assert_array_equal(values[2], np.full((3, 4), 2))
    np.testing.assert_array_equal(values[3], NUMBERS < 0)
    np.testing.assert_array_equal(values[4], np.maximum(NUMBERS, 2 * NUMBERS))


def test_model_first_used_in_a_branch_is_built_outside() -> None:
    source = keras.layers.Input((4,))
    output = keras.layers.Dense(1)(source)
    choice = tf.placeholder(tf.bool, [])
    branch = tf.cond(choice, lambda: tf.identity(output), lambda: tf.zeros([3, 1]))
    whole_output = tf.identity(output)
    session = initialized()
    values = session.run([branch, whole_output], {choice: True, source: NUMBERS})
    np.testing.assert_array_equal(*values)


INVALID: dict[str, tuple[Callable[[], Any], str]] = {
    "no layer's output": (
        lambda: tf.gradients(keras.KerasTensor((1,)), []),
        "the output of no layer. Make inputs with tf.keras.Input",
    ),
    "unknown rank": (
        lambda: keras.layers.Dense(1)(tf.placeholder(tf.float32)),
        "needs the dtype and the number of dimensions of 'Placeholder:0'",
    ),
    "a loss of Keras of a graph's tensor": (
        lambda: keras.losses.MeanSquaredError()(tf.ones([2, 1]), tf.ones([2, 1])),
        "no value until a session runs it",
    ),
}


@pytest.mark.parametrize("case", list(INVALID))
def test_unsupported_keras_calls_raise(case: str) -> None:
    call, message = INVALID[case]
    with pytest.raises(InvalidTypeError, match=message):
        call()


def test_an_input_that_is_not_fed_is_named() -> None:
    source = keras.layers.Input((4,), name="numbers_not_fed")
    total = tf.reduce_sum(keras.layers.Dense(1)(source))
    with pytest.raises(
        InvalidArgumentError, match=r"feed a value for placeholder.*numbers_not_fed"
    ):
        initialized().run(total)


def test_layers_stay_eager_outside_of_graphs() -> None:
    layer = keras.layers.Dense(1)
    with eagerly():
        output = layer(torch.tensor(NUMBERS))
        kernel, bias = layer.get_weights()
        np.testing.assert_allclose(output.detach().numpy(), NUMBERS @ kernel + bias, rtol=1e-5)
    assert not tf.global_variables()


def test_models_compiled_in_a_graph_train_eagerly() -> None:
    """Keras' own loops need no session; metrics that are told once are those of each output."""
    a, b = keras.layers.Input((3,)), keras.layers.Input((3,))
    dense = keras.layers.Dense(4)
    model = keras.models.Model([a, b], [dense(b), keras.layers.Dropout(0.5)(dense(a))])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    kernel_before = model.get_weights()[0].copy()
    x, y = np.ones((4, 3), np.float32), np.ones((4, 4), np.float32)
    history = model.fit([x, x], [y, y], epochs=2, batch_size=2, verbose=0)
    assert sum("mae" in name for name in history.history) == 2
    assert not np.array_equal(kernel_before, model.get_weights()[0])
    assert tf.Variable(1.0).graph is tf.get_default_graph()


def test_weights_of_an_unbuilt_model_raise_until_called() -> None:
    model = keras.models.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=r"Weights for model '.*' have not yet been created"):
        _ = model.trainable_weights
    with eagerly():
        loss = lambda: keras.losses.mean_squared_error(model(NUMBERS), LABELS)  # noqa: E731
        optimizer = keras.optimizers.Adam()
        optimizer.minimize(loss, lambda: model.trainable_weights)
        slots = [optimizer.get_slot(weight, "m") for weight in model.trainable_weights]
    assert all(slot.numpy().any() for slot in slots)
    assert len(model.trainable_weights) == 4

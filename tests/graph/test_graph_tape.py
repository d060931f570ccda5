"""`GradientTape` while a graph is built, and shapes of variables that have no value yet."""

from __future__ import annotations

import pytest

import thalweg.tf as newer
import thalweg.tf.compat.v1 as tf
from thalweg import v1


def test_a_tape_gives_operations_of_the_graph() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        w, x = tf.Variable([1.0, 2.0]), tf.placeholder(tf.float32, [2])
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(w * w * x)
        gradients = tape.gradient(loss, {"w": w, "rest": [x]})
        session.run(tf.global_variables_initializer())
        values = session.run(gradients, {x: [3.0, 4.0]})
    assert values["w"].tolist() == [6.0, 16.0]
    assert values["rest"][0].tolist() == [1.0, 4.0]


def test_graph_tape_supports_weights_and_unconnected_gradients() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        w, v = tf.Variable([1.0, 2.0]), tf.Variable([5.0])
        with tf.GradientTape(persistent=True) as tape:
            product = w * 3.0
        of_w, v_grad = tape.gradient(product, [w, v], output_gradients=tf.constant([1.0, 10]))
        zero = tape.gradient(product, v, unconnected_gradients="zero")
        session.run(tf.global_variables_initializer())
        assert session.run(of_w).tolist() == [3.0, 30.0]
        assert v_grad is None
        assert session.run(zero).tolist() == [0.0]


def test_a_tape_is_used_once_in_either_mode() -> None:
    with tf.Graph().as_default():
        w = tf.Variable(1.0)
        with tf.GradientTape() as tape:
            loss = w * w
        tape.gradient(loss, w)
        with pytest.raises(RuntimeError, match="non-persistent GradientTape"):
            tape.gradient(loss, w)
    eager = v1.Variable(3.0)
    with v1.GradientTape() as tape:
        loss = eager * eager
    assert tape.gradient(loss, eager).item() == 6.0


def test_eager_tape_rejects_graph_tensors() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2])
    with v1.GradientTape() as tape, pytest.raises(TypeError, match="belongs to a graph"):
        tape.watch(x)


@pytest.mark.parametrize(
    ("function", "expected"), [(tf.ones_like, [1.0, 1.0]), (tf.zeros_like, [0.0, 0.0])]
)
def test_initial_value_needs_only_a_known_shape(function: object, expected: list[float]) -> None:
    """One variable may begin in the shape of another that has no value yet."""
    with tf.Graph().as_default(), tf.Session() as session:
        first = tf.Variable([5.0, 6.0])
        second = tf.Variable(function(first))  # pyright: ignore[reportCallIssue]
        session.run(second.initializer)
        assert session.run(second).tolist() == expected
        open_shape = tf.placeholder(tf.float32, [None])
        wide = function(open_shape, dtype=tf.float64)  # pyright: ignore[reportCallIssue]
        value = session.run(wide, {open_shape: [1.0, 2.0]})
        assert (value.tolist(), value.dtype.name) == (expected, "float64")


def test_convert_to_tensor_or_indexed_slices_keeps_slices() -> None:
    with tf.Graph().as_default():
        slices = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([0]), tf.constant([2, 1]))
        assert tf.convert_to_tensor_or_indexed_slices(slices) is slices
        assert tf.convert_to_tensor_or_indexed_slices([1.0], tf.float64).dtype == tf.float64
        with pytest.raises(TypeError, match=r"torch\.float32, not torch\.float64"):
            tf.convert_to_tensor_or_indexed_slices(slices, tf.float64)


def test_variable_is_not_a_tensor_but_converts() -> None:
    w = newer.Variable([1.0, 2.0])
    value = newer.convert_to_tensor(w)
    w.assign([5.0, 6.0])
    assert value.tolist() == [1.0, 2.0]
    assert [isinstance(x, newer.Tensor) for x in (w, value)] == [False, True]
    with tf.Graph().as_default():
        w = tf.Variable([1.0])
        assert [isinstance(x, tf.Tensor) for x in (w, w + 1.0)] == [False, True]

"""Graph mode: symbolic gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg._graph as tf
from sessions import initialized
from thalweg import GradientTape, IndexedSlices, InvalidArgumentError

pytestmark = pytest.mark.usefixtures("graph")


def test_gradients_have_the_shapes_and_dtypes_of_their_variables() -> None:
    w = tf.Variable(np.ones((2, 3)))
    (gradient,) = tf.gradients((w * w).sum(), w)
    assert (gradient.shape, gradient.dtype) == ((2, 3), torch.float64)
    assert gradient.op.type == "Gradients"
    np.testing.assert_array_equal(initialized().run(gradient), np.full((2, 3), 2.0))


SOURCES: dict[str, Callable[[], Any]] = {
    "variable": lambda: tf.Variable(3.0),
    "variable that is not trained": lambda: tf.Variable(3.0, trainable=False),
    "constant": lambda: tf.constant(3.0),
    "placeholder": lambda: tf.placeholder_with_default(3.0, []),
    "computed": lambda: tf.Variable(2.0) + 1,
    "computed from constants": lambda: tf.constant(2.0) + 1,
    "passed through": lambda: tf.Variable(3.0).contiguous(),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_gradients_with_respect_to_intermediate_tensors(make: Callable[..., Any]) -> None:
    x = make()
    y = x * x
    z = y * 2 + x
    assert initialized().run(tf.gradients(z, [x, y])) == [13.0, 2.0]


@pytest.mark.parametrize("trainable", [True, False])
def test_gradients_with_respect_to_placeholders(trainable: bool) -> None:
    x = tf.placeholder("float32", [])
    w = tf.Variable(1.0, trainable=trainable)
    gradients = tf.gradients(x * x * w * w, [x, w])
    assert initialized().run(gradients, {x: 3.0, w: 2.0}) == [24.0, 36.0]


def test_pass_through_does_not_mix_up_paths() -> None:
    x = tf.Variable([1.0, 2.0])
    alias = x.contiguous()  # returns the variable's own tensor
    y = (alias * 2 + x * 10).sum()
    (gradient,) = tf.gradients(y, alias)
    np.testing.assert_array_equal(initialized().run(gradient), [2, 2])


@pytest.mark.parametrize("stops", [[0], [0, 1], [1], []])
def test_stop_gradients_cuts_paths(stops: list[int]) -> None:
    a = tf.Variable(1.0)
    b = a * 2
    c = b + b.contiguous() * 3
    xs = [b, c]
    got = tf.gradients([a + b, c], [a, *xs], stop_gradients=[xs[i] for i in stops])
    by_b = 1 if 1 in stops else 5
    grad_a = 1 if 0 in stops else 1 + 2 * by_b
    assert initialized().run(got) == [grad_a, by_b, 1]


def test_gradients_are_none_where_there_is_no_connection() -> None:
    x, y, z = tf.Variable(1.0), tf.Variable(2.0), tf.Variable([1, 2])
    loss = x * 2 + tf.stop_gradient(y) + (y > 1).to(torch.float32) + y.detach()
    assert tf.gradients(loss, [y, z]) == [None, None]
    gradient, missing = tf.gradients(loss, [x, y])
    assert missing is None
    assert initialized().run(gradient) == 2.0


def test_gradients_of_no_targets_are_none(graph: tf.Graph) -> None:
    assert tf.gradients([], [tf.constant(1.0)]) == [None]


def test_unconnected_gradients_add_no_operation(graph: tf.Graph) -> None:
    x, y = tf.Variable(1.0), tf.Variable(2.0)
    count = len(graph.get_operations())
    tf.gradients(y, x)
    assert len(graph.get_operations()) == count


def test_unconnected_gradients_can_be_zeros() -> None:
    x, y = tf.Variable([1.0, 2.0]), tf.Variable(2.0)
    result = tf.gradients(y, [x, y], unconnected_gradients="zero")
    np.testing.assert_array_equal(initialized().run(result[0]), [0, 0])
    with pytest.raises(ValueError, match="Unknown value for unconnected_gradients: 'one'"):
        tf.gradients(y, x, unconnected_gradients="one")


def test_connections_are_tracked_per_output() -> None:
    x, y = tf.Variable([1.0]), tf.Variable([2.0])
    function = lambda a, b: (a * 2, b * 3)  # noqa: E731
    first, two = tf.get_default_graph().call(function, (x, y), name="both")
    assert tf.gradients(first, y) == [None]
    assert tf.gradients(two, [x, y])[0] is None


def test_gradients_sum_weighted_targets() -> None:
    x = tf.Variable([1.0, 2.0])
    ys = [x * 2, (x * x).sum()]
    session = initialized()
    (total_grad,) = tf.gradients(ys, x)
    (weighted,) = tf.gradients(ys, x, grad_ys=[[1, 10], tf.constant(0.5)])
    (half,) = tf.gradients(ys, x, grad_ys=[None, 0.0])
    got = session.run([total_grad, weighted, half])
    np.testing.assert_array_equal(got, [[4, 6], [3, 22], [2, 2]])
    with pytest.raises(InvalidArgumentError, match="1 grad_ys were given for 2 ys"):
        tf.gradients(ys, x, grad_ys=[None])
    (wrong,) = tf.gradients(ys[0], x, grad_ys=[[1.0, 2.0, 3.0]])
    with pytest.raises(InvalidArgumentError, match=r"shape \(3,\) but its target has shape \(2,\)"):
        session.run(wrong)


def test_one_run_computes_several_gradients() -> None:
    x = tf.Variable(3.0)
    y = x * x * x
    first = tf.gradients(y, x)
    second = tf.gradients(y * 2, x)
    assert initialized().run([first, second, y]) == [[27.0], [54.0], 27.0]


def test_gradients_of_gradients() -> None:
    x = tf.Variable(3.0)
    (first,) = tf.gradients(x**3, x)
    (second,) = tf.gradients(first, x)
    (third,) = tf.gradients(second, x)
    assert initialized().run([third, first, second]) == [6.0, 27.0, 18.0]
    assert initialized().run(third) == 6.0


def test_non_symbolic_sources_raise() -> None:
    with pytest.raises(TypeError, match=r"Passed in object 3.0, expected a symbolic tensor"):
        tf.gradients(tf.constant(1.0), 3.0)


def test_gradients_equal_those_of_the_tape() -> None:
    def function(a: Any, b: Any) -> Any:
        return torch.tanh(a @ b).pow(2).mean()

    values = [np.linspace(-1, 1, 6, dtype=np.float32).reshape(shape) for shape in [(2, 3), (3, 2)]]
    variables = [tf.Variable(value) for value in values]
    got = initialized().run(tf.gradients(function(*variables), variables))
    with GradientTape() as tape:
        leaves = [torch.tensor(value, requires_grad=True) for value in values]
        loss = function(*leaves)
    for grad, tape_grad in zip(got, tape.gradient(loss, leaves), strict=True):
        np.testing.assert_array_equal(grad, tape_grad.numpy())


LOOKUPS: dict[str, Callable[[Any, Any], Any]] = {
    "gather": tf.gather,
    "embedding_lookup": tf.embedding_lookup,
    "torch's": lambda w, i: torch.nn.functional.embedding(i, w, sparse=True),
}


@pytest.mark.parametrize("lookup", LOOKUPS.values(), ids=LOOKUPS.keys())
def test_gradient_of_looked_up_rows_is_slices(lookup: Callable[[Any, Any], Any]) -> None:
    w = tf.Variable(np.arange(8, dtype=np.float32).reshape(4, 2), name="w")
    ids = tf.placeholder("int64", [None])
    (slices,) = tf.gradients((lookup(w, ids) * 2).sum(), w)
    assert isinstance(slices, tf.SymbolicSlices)
    assert tf.is_symbolic(slices)
    assert (slices.shape, slices.dtype, slices.values.shape) == ((4, 2), torch.float32, (None, 2))
    values, indices, shape = initialized().run(slices, {ids: [3, 0, 3]})
    np.testing.assert_array_equal(values, np.full((3, 2), 2))
    np.testing.assert_array_equal(indices, [3, 0, 3])
    np.testing.assert_array_equal(shape, [4, 2])
    assert initialized().run([slices.indices, slices.values], {ids: [1]})[0] == [1]


def test_gradient_slices_can_be_processed() -> None:
    w = tf.Variable([[1.0], [2.0], [3.0]])
    (slices,) = tf.gradients(tf.gather(w, [0, 2]).sum(), w)
    halved = tf.SymbolicSlices(slices.values * 0.5, slices.indices, slices.dense_shape)
    dense = tf.convert_to_tensor(-(2 * halved / 4))
    session = initialized()
    assert session.run(halved).values.tolist() == [[0.5], [0.5]]
    np.testing.assert_array_equal(session.run(dense), [[-0.25], [0], [-0.25]])
    session.run(w.assign_sub(halved))
    np.testing.assert_array_equal(session.run(w), [[0.5], [2], [2.5]])
    same_slices = tf.tuple_([slices, None])[0]
    assert isinstance(same_slices, tf.SymbolicSlices)
    assert session.run(same_slices).indices.tolist() == [0, 2]
    with session.as_default():
        assert halved.eval().indices.tolist() == [0, 2]


def test_rows_of_any_rank_can_be_looked_up() -> None:
    w = tf.Variable(np.ones((3, 2, 2), np.float32))
    (slices,) = tf.gradients(tf.gather(w, [[1], [1]]).sum(), w)
    assert initialized().run(slices).values.shape == (2, 2, 2)


def test_gradient_is_dense_where_rows_and_whole_are_used() -> None:
    w = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    (gradient,) = tf.gradients(tf.gather(w, [1]).sum() + w.sum(), w)
    assert isinstance(gradient, tf.SymbolicTensor)
    np.testing.assert_array_equal(initialized().run(gradient), [[1, 1], [2, 2]])


def test_gradient_of_rows_known_only_at_run_time() -> None:
    w = tf.Variable([[1.0], [2.0]])
    (gradient,) = tf.gradients(tf.gather(tf.identity(w), [1]).sum(), w)
    session = initialized()
    assert isinstance(gradient, tf.SymbolicTensor)
    assert session.run(gradient).indices.tolist() == [1]
    np.testing.assert_array_equal(session.run(gradient * 2), [[0], [2]])
    np.testing.assert_array_equal(session.run(w.assign_sub(gradient)), [[1], [1]])
    grads: list[Any] = []
    session.run(tf.operation(grads.append, [gradient], "see"))
    (weighted,) = tf.gradients(w * 2, w, grad_ys=[gradient])
    np.testing.assert_array_equal(session.run(weighted), [[0], [2]])
    assert isinstance(grads[0], IndexedSlices)


def _updated(w: Any) -> Any:
    return w.assign_add(1.0)


def _in_a_branch(w: Any) -> Any:
    return tf.cond(tf.placeholder_with_default(True, []), lambda: _updated(w), lambda: w * 1.0)


def _in_a_loop(w: Any) -> Any:
    def body(i: Any) -> Any:
        with tf.control_dependencies([_updated(w)]):
            return i + 1

    return tf.while_loop(lambda i: i < 2, body, [tf.constant(0)])


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("update", [_updated, _in_a_branch, _in_a_loop])
def test_gradient_after_an_update_uses_earlier_values(update: Any, trainable: bool) -> None:
    """As in TensorFlow, where what a product has read stays as it was."""
    w, x = tf.Variable(3.0, trainable), tf.placeholder("float32", [])
    y = tf.identity(w) * w * x
    with tf.control_dependencies([y]):
        update_op = update(w)
    with tf.control_dependencies([update_op]):
        first = tf.gradients(y, [w, x])
        second = tf.gradients(first[0], w)
        late_grads = tf.gradients(w * w, w)
    values = initialized().run([y, first, second, late_grads], {x: 2.0})
    count = 2 if update is _in_a_loop else 1
    assert values == [18.0, [12.0, 9.0], [4.0], [2 * (3.0 + count)]]


def test_gradients_and_updates_take_turns_in_a_loop() -> None:
    """By what was computed before the loop, however often it is updated."""
    w = tf.Variable(3.0)
    y = w * w

    def body(i: Any, total: Any) -> Any:
        total = total + tf.gradients(y, w)[0]
        with tf.control_dependencies([total]), tf.control_dependencies([w.assign_add(1.0)]):
            return i + 1, tf.identity(total)

    session = initialized()
    total = tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), tf.constant(0.0)])[1]
    assert session.run(total) == 18.0
    assert session.run(w) == 6.0


def test_training_step_does_not_copy_saved_tensors() -> None:
    """Also where updates come first, if these are of other variables."""
    w, mean, x = tf.Variable(1.0), tf.Variable(0.0, trainable=False), tf.placeholder("float32", [])
    loss = w * w * x
    update = mean.assign_sub(0.5 * (mean - loss))
    with tf.control_dependencies([update]):
        (gradient,) = tf.gradients(loss, w)
    train_op, session = w.assign_sub(gradient), initialized()
    session.run(train_op, {x: 2.0})
    assert not any(plan.overwrites for plan in session._plans.values())


def test_gradients_under_control_dependencies_come_after_the_update() -> None:
    w, counter = tf.Variable(2.0), tf.Variable(0.0)
    loss = w * w
    with tf.control_dependencies([counter.assign_add(1.0)]):
        (gradient,) = tf.gradients(loss, w)
        count = counter.read_value()
    assert initialized().run([gradient, count, w.assign_sub(gradient)]) == [4.0, 1.0, -2.0]

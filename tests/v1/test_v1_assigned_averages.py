"""`assign_moving_average` and `weighted_moving_average`."""

from __future__ import annotations

import numpy as np
import pytest

import thalweg.v1 as tf
from case_batches import many
from sessions import initialized
from thalweg import Variable
from thalweg.v1.train.moving_averages import assign_moving_average, weighted_moving_average

VALUES = ([1.0, 2.0], [3.0, 4.0], [5.0, -6.0])


def test_an_eager_variable_moves_toward_a_value() -> None:
    w = Variable([10.0, 11.0])
    assert assign_moving_average(w, [1.0, 2.0], 0.25, zero_debias=False) is w
    np.testing.assert_allclose(w.numpy(), [3.25, 4.25])
    assign_moving_average(w, [1.0, 2.0], 0.25)
    np.testing.assert_allclose(w.numpy(), [1.0, 2.0])


@many("zero_debias", [True, False])
@many("dtype", ["float32", "float64"])
def test_a_variable_of_a_graph_moves_in_each_run(dtype: str, zero_debias: bool) -> None:
    decay, biased = 0.9, np.zeros(2)
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.Variable(np.zeros(2, dtype), name="w")
        feed = tf.placeholder(dtype, [2])
        update = assign_moving_average(w, feed, decay, zero_debias=zero_debias)
        session.run(tf.global_variables_initializer())
        for step, value in enumerate(VALUES, 1):
            biased = biased * decay + np.array(value) * (1 - decay)
            expected = biased / (1 - decay**step) if zero_debias else biased
            np.testing.assert_allclose(session.run(update, {feed: value}), expected, rtol=1e-6)
            np.testing.assert_allclose(session.run(w), expected, rtol=1e-6)


def test_values_that_do_not_fit_change_nothing(graph: tf.Graph) -> None:
    w = tf.Variable([0.0, 0.0], name="w")
    with pytest.raises(TypeError, match="The value for 'w:0' is float64, and the variable is"):
        assign_moving_average(w, tf.constant([1.0, 2.0], tf.float64), 0.9)
    x = tf.placeholder(tf.float32, None)
    move, session = assign_moving_average(w, x, 0.5), initialized()
    with pytest.raises(ValueError, match=r"'w:0' has shape \(3, 2\), and the variable has shape"):
        session.run(move, {x: np.ones((3, 2))})
    assert not any(np.any(array) for array in session.run(tf.global_variables()))
    np.testing.assert_allclose(session.run(move, {x: 1.0}), [1.0, 1.0])


def test_zero_debias_variables_are_created_for_each_call() -> None:
    with tf.Graph().as_default(), tf.variable_scope("outer") as scope:
        w = tf.get_variable("w", initializer=0.0)
        for _ in range(2):
            assign_moving_average(w, 1.0, 0.9)
        names = [x.op.name.removeprefix("outer/outer/w/") for x in scope.global_variables()]
    assert names == ["outer/w", "biased", "local_step", "biased_1", "local_step_1"]


def test_weighted_moving_average_averages_weighted_values() -> None:
    sums = np.zeros(2)
    with tf.Graph().as_default(), tf.Session() as session:
        value, weight = tf.placeholder("float32", []), tf.placeholder("float32", [])
        average = weighted_moving_average(value, 0.5, weight)
        session.run(tf.global_variables_initializer())
        for number, weight_value in ((3.0, 4.0), (11.0, 22.0)):
            sums = sums * 0.5 + np.array([number * weight_value, weight_value]) * 0.5
            fetched_average = session.run(average, {value: number, weight: weight_value})
            np.testing.assert_allclose(fetched_average, sums[0] / sums[1], rtol=1e-6)

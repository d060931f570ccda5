"""Sessions compute graphs as written, where TensorFlow's default sessions rewrite them.

TensorFlow 2.21 computed both columns: with `rewrite_options.disable_meta_optimizer=True`, and with
the default configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as facade
import thalweg.tf.compat.v1 as tf
from thalweg._base.execution_context import eagerly

# name: (what is computed of a number, the number, TensorFlow as written, TensorFlow rewritten)
VALUES: dict[str, tuple[Callable[[Any], Any], float, float, float]] = {
    "quotient": (lambda x: x / 3.0, 5.0, 1.6666666269302368, 1.6666667461395264),
    "another quotient": (lambda x: x / 3.0, 7.0, 2.3333332538604736, 2.3333334922790527),
    "inverse time": (
        lambda x: tf.train.inverse_time_decay(0.1, x, 7, 0.9),
        5.0,
        0.06086956709623337,
        0.06086956337094307,
    ),
    "cubic": (
        lambda x: tf.train.polynomial_decay(0.3, x, 77777, 0.0, power=3.0),
        12.0,
        0.2998611330986023,
        0.2998611629009247,
    ),
}
# The slot `v` of Adam after one step, for gradients of rows.
ROWS = {1.1: (0.0012099844170734286, 0.0012099845334887505), 0.7: (0.0004899936611764133,) * 2}


@pytest.mark.parametrize("name", VALUES)
def test_session_evaluates_expressions_as_written(name: str) -> None:
    function, number, expected, rewritten = VALUES[name]
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [])
        got = session.run(function(x), {x: number})
    assert got == np.float32(expected)
    assert abs(float(got) - rewritten) <= np.spacing(np.float32(rewritten))


def test_sparse_adam_evaluates_squares_as_written() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        var, values = tf.Variable([1.0, 2.0]), tf.placeholder(tf.float32, [2])
        optimizer = tf.train.AdamOptimizer(0.1)
        step = optimizer.apply_gradients([(tf.IndexedSlices(values, tf.constant([0, 1])), var)])
        session.run(tf.global_variables_initializer())
        session.run(step, {values: list(ROWS)})
        got = session.run(optimizer.get_slot(var, "v"))
    for value, (expected, rewritten) in zip(got, ROWS.values(), strict=True):
        assert value == np.float32(expected)
        assert abs(float(value) - rewritten) <= np.spacing(np.float32(rewritten))


@pytest.mark.parametrize("flush", [False, True])
def test_graph_denormals_are_treated_as_in_torch(flush: bool) -> None:
    numbers = np.array([1e-40, -1e-40, 0.0], np.float32)
    expected = [0.0, 0.0, 0.0] if flush else [1.0, -1.0, 0.0]
    if not torch.set_flush_denormal(flush):
        pytest.skip("torch cannot set it on this processor")
    try:
        with eagerly():
            assert facade.sign(facade.constant(numbers)).tolist() == expected
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.placeholder(tf.float32, [3])
            assert session.run(tf.sign(x), {x: numbers}).tolist() == expected
    finally:
        torch.set_flush_denormal(False)

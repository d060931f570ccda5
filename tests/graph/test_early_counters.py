"""Counters of reference variables that a run raises before it reads them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg.tf.compat.v1 as tf
from thalweg.v1 import train


def _made(dtype: Any = tf.int64, use_resource: bool = False, trainable: bool = False) -> Any:
    start = tf.constant(0, dtype)
    options = {"trainable": trainable, "use_resource": use_resource}
    return tf.get_variable("step", initializer=start, **options)


def _assigned_after_another(step: Any) -> Any:
    with tf.control_dependencies([tf.no_op()]):
        return step.assign(step + 1)


COUNTS: dict[str, tuple[dict[str, Any], Callable[[Any], Any], bool]] = {
    "assign": ({}, lambda step: step.assign(step + 1), True),
    "tf.assign": ({}, lambda step: tf.assign(step, tf.identity(step) + 1), True),
    "int32": ({"dtype": tf.int32}, lambda step: step.assign(step + 1), False),
    "int16": ({"dtype": tf.int16}, lambda step: step.assign(step + 1), False),
    "resource": ({"use_resource": True}, lambda step: step.assign(step + 1), False),
    "assign_add": ({}, lambda step: step.assign_add(1), False),
    "float": ({"dtype": tf.float32}, lambda step: step.assign(step + 1), False),
    "trained": ({"trainable": True}, lambda step: step.assign(step + 1), False),
    "constant": ({}, lambda step: step.assign(1), False),
    "fed": ({}, lambda step: step.assign(step + tf.placeholder(tf.int64, (), "by")), True),
    "ordered": ({}, _assigned_after_another, False),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("is_counted_first", [False, True])
def test_run_reads_the_documented_count_beside_an_update(name: str, is_counted_first: bool) -> None:
    options, count, is_early = COUNTS[name]
    with tf.Graph().as_default(), tf.Session() as session:
        step = _made(**options)
        read = None if is_counted_first else tf.cast(step, tf.float32) * 10.0
        new_count = count(step)
        read = tf.cast(step, tf.float32) * 10.0 if read is None else read
        session.run(tf.global_variables_initializer())
        feeds = {"by:0": 1} if name == "fed" else {}
        assert session.run([read, new_count.op], feeds)[0] == (10.0 if is_early else 0.0)
        assert session.run(step) == 1


class AdamWeightDecay(train.Optimizer):
    """BERT's optimizer: an `apply_gradients` of its own, which does not count the step."""

    def __init__(self, learning_rate: Any) -> None:
        super().__init__(False, "AdamWeightDecay")
        self.learning_rate = learning_rate

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        assignments = []
        for grad, param in grads_and_vars:
            title = re.sub(r":\d+$", "", param.name)
            options = {"shape": param.shape.as_list(), "trainable": False}
            zeros = {**options, "dtype": tf.float32, "initializer": tf.zeros_initializer()}
            m = tf.get_variable(f"{title}/adam_m", **zeros)
            v = tf.get_variable(f"{title}/adam_v", **zeros)
            next_m = tf.multiply(0.9, m) + tf.multiply(1.0 - 0.9, grad)
            next_v = tf.multiply(0.999, v) + tf.multiply(1.0 - 0.999, tf.square(grad))
            update = next_m / (tf.sqrt(next_v) + 1e-6)
            update += 0.01 * param
            next_param = param - self.learning_rate * update
            assignments += [param.assign(next_param), m.assign(next_m), v.assign(next_v)]
        return tf.group(*assignments, name=name)


def _train_as_bert(warmup: int) -> list[float]:
    """Return the first weight after each of four steps of BERT's `create_optimizer`."""
    x = tf.placeholder(tf.float32, [None, 3])
    w = tf.get_variable("w", initializer=np.ones((3, 2), np.float32))
    b = tf.get_variable("bias", initializer=np.zeros(2, np.float32))
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - 0.5))
    step = tf.train.get_or_create_global_step()
    rate = tf.train.polynomial_decay(tf.constant(0.1), step, 10, 0.0, 1.0, False)
    if warmup:
        progress = tf.cast(tf.cast(step, tf.int32), tf.float32) / float(warmup)
        is_warmup = tf.cast(tf.cast(step, tf.int32) < warmup, tf.float32)
        rate = (1.0 - is_warmup) * rate + is_warmup * (0.1 * progress)
    variables = tf.trainable_variables()
    grads, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
    pairs = list(zip(grads, variables, strict=True))
    train_op = AdamWeightDecay(rate).apply_gradients(pairs, global_step=step)
    train_op = tf.group(train_op, [step.assign(step + 1)])
    weights = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for place in range(4):
            session.run(train_op, {x: np.eye(3, dtype=np.float32) * (place + 1)})
            weights.append(float(session.run(w)[0, 0]))
        assert session.run(step) == 4
    return weights


# Rates of TensorFlow 2.21: where reference variables are read after the count, and where resource
# variables are read before it. The first step moves a weight by its rate.
@pytest.mark.parametrize(
    ("is_resource", "warmup", "expected"),
    [
        (False, 0, 0.09),
        (False, 3, 0.1 / 3),
        (True, 0, 0.1),
        (True, 3, 0.0),
    ],
)
def test_bert_rate_with_reference_variables_is_one_step_ahead(
    is_resource: bool, warmup: int, expected: float
) -> None:
    was_enabled = tf.resource_variables_enabled()
    try:
        (tf.enable_resource_variables if is_resource else tf.disable_resource_variables)()
        with tf.Graph().as_default():
            weights = _train_as_bert(warmup)
    finally:
        (tf.enable_resource_variables if was_enabled else tf.disable_resource_variables)()
    unit = (1.0 - 0.7145489454269409) / 0.09  # how far TensorFlow moves the weight, per rate
    assert 1.0 - weights[0] == pytest.approx(expected * unit, rel=1e-5, abs=1e-7)

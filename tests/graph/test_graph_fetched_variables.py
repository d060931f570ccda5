"""Variables fetched beside an update: what TensorFlow 2.21 gives for its two kinds of variable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fresh_process
import thalweg.tf.compat.v1 as tf
from thalweg._base.execution_context import process
from thalweg._graph import Graph, Session
from thalweg.v1 import train

MAKERS: dict[str, Callable[..., Any]] = {
    "Variable": lambda kind: tf.Variable([1.0, 2.0], use_resource=kind, name="w"),
    "get_variable": lambda kind: tf.get_variable(
        "w", initializer=np.array([1.0, 2.0], np.float32), use_resource=kind
    ),
}


@pytest.fixture
def settings() -> Iterator[None]:
    yield
    tf.enable_resource_variables()


def fetched(w: Any, opt: Any, steps: int = 3) -> tuple[list[Any], list[Any]]:
    """Return the values of a variable and its slot, fetched with the step and after it."""
    w2 = w * 1.0
    loss, slots = tf.reduce_sum(w * w), opt.get_slot_names
    op = opt.minimize(loss)
    slot = opt.get_slot(w, slots()[0])
    with tf.control_dependencies([op]):
        read_op = w.read_value()
    fetches, endings = [], []
    with Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            values = session.run([w, slot])
            _, value, slot_value, read, w2_value = session.run([op, w, slot, read_op, w2])
            fetches.append((value, slot_value))
            endings.append((values, session.run([w, slot])))
            np.testing.assert_array_equal(read, endings[-1][1][0])
            np.testing.assert_array_equal(w2_value, values[0])
    return fetches, endings


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("is_resource", [False, True])
def test_resource_fetches_precede_updates_and_others_follow(maker: str, is_resource: bool) -> None:
    with Graph().as_default():
        fetches, endings = fetched(MAKERS[maker](is_resource), train.MomentumOptimizer(0.1, 0.9))
    for got, (start, end) in zip(fetches, endings, strict=True):
        for value, expected in zip(got, start if is_resource else end, strict=True):
            np.testing.assert_array_equal(value, expected)


def kind_of(make: Callable[..., Any]) -> bool:
    with Graph().as_default():
        return make().is_resource


def test_variables_are_resource_variables_by_setting(settings: None) -> None:
    makers = [
        lambda: tf.Variable(1.0),
        lambda: tf.get_variable("w", []),
        tf.train.create_global_step,
    ]
    assert tf.resource_variables_enabled()
    assert [kind_of(make) for make in makers] == [True] * 3
    tf.disable_resource_variables()
    assert not tf.resource_variables_enabled()
    assert [kind_of(make) for make in makers] == [False] * 3
    assert kind_of(lambda: tf.Variable(1.0, use_resource=True))

    def scoped() -> Any:
        with tf.variable_scope("a", use_resource=True), tf.variable_scope("b"):
            return tf.get_variable("w", [])

    assert kind_of(scoped)
    tf.enable_resource_variables()
    assert kind_of(makers[0])


def test_non_trainable_variable_is_fetched_after_its_step() -> None:
    with Graph().as_default(), Session() as session:
        w = tf.Variable(3.0, trainable=False, use_resource=False)
        (grad,) = tf.gradients(w * w, [w])
        op = tf.train.GradientDescentOptimizer(0.5).apply_gradients([(grad, w)])
        session.run(tf.global_variables_initializer())
        assert session.run([w, grad, op, w]) == [0.0, 6.0, None, 0.0]


def test_fetches_of_one_variable_are_equal() -> None:
    with Graph().as_default(), Session() as session:
        w = tf.Variable(0.0, use_resource=False)
        add = w.assign_add(1.0)
        session.run(w.initializer)
        assert session.run([w, add.op, {"w": w, "name": "Variable:0"}]) == [
            1.0, None, {"w": 1.0, "name": 1.0}
        ]  # fmt: skip


SCRIPT = """
{start}
step = tf.train.get_or_create_global_step()
w = tf.Variable([4.0])
train_op = tf.train.GradientDescentOptimizer(0.25).minimize(tf.reduce_sum(w * w), step)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(2):
        _, count, value = session.run([train_op, step, w])
        print(count, value, end=" ")
"""
STARTS = {
    "import tensorflow as tf": "1 [2.] 2 [1.] ",
    "import tensorflow.compat.v1 as tf; tf.disable_v2_behavior()": "1 [2.] 2 [1.] ",
    "import tensorflow.compat.v1 as tf; tf.disable_eager_execution()": "0 [4.] 1 [2.] ",
}


@pytest.mark.parametrize("start", STARTS)
def test_fetched_global_step_depends_on_the_variable_kind(start: str, tmp_path: Any) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(start=start))
    process = fresh_process.run("-m thalweg.tf", str(tmp_path / "script.py"))
    assert process.stdout == STARTS[start], process.stderr


def test_default_variable_kind_is_restored() -> None:
    assert process.resource_variables


@pytest.mark.parametrize("is_resource", [False, True])
def test_hooks_count_alike_for_both_kinds(is_resource: bool, settings: None, tmp_path: Any) -> None:
    if not is_resource:
        tf.disable_resource_variables()
    counts = []

    class Saving(train.CheckpointSaverListener):
        def after_save(self, session: Any, global_step_value: int) -> None:
            counts.append(global_step_value)

    with Graph().as_default():
        w, step = tf.Variable([4.0]), train.get_or_create_global_step()
        op = train.GradientDescentOptimizer(0.25).minimize(tf.reduce_sum(w * w), step)
        hooks = [
            train.StopAtStepHook(last_step=7),
            train.CheckpointSaverHook(str(tmp_path), save_steps=3, listeners=[Saving()]),
        ]
        with train.SingularMonitoredSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run(op)
    assert counts == [0, 3, 6, 7]

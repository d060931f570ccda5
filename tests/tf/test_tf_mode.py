"""When a program of `thalweg.tf.compat.v1` is in graph mode, and when in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fresh_process
import thalweg
import thalweg.tf as tf2
import thalweg.tf.compat.v1 as tf
from thalweg._base.execution_context import process
from thalweg.errors import FailedPreconditionError


@pytest.fixture
def beginning() -> Iterator[None]:
    """The state of a program in which nothing was done yet."""
    tf.reset_default_graph()
    process.is_mode_fixed = False
    yield
    tf.enable_v2_behavior()


# what a program of TensorFlow 1 may call first
FIRST: dict[str, Callable[[], Any]] = {
    "placeholder": lambda: tf.placeholder(tf.float32, [None]),
    "placeholder of tf": lambda: tf2.placeholder(tf.float32, [None]),
    "Variable": lambda: tf.Variable([1.0]),
    "get_variable": lambda: tf.get_variable("w", [2]),
    "constant": lambda: tf.constant(2),
    "zeros": lambda: tf.zeros([2]),
    "random_normal": lambda: tf.random_normal([2]),
    "numbers": lambda: tf.add(2, 3),
    "a seed": lambda: tf.set_random_seed(1),
    "a scope": lambda: tf.name_scope("layer"),
    "the step": lambda: tf.train.get_or_create_global_step(),
    "the question": lambda: tf.executing_eagerly(),
    "the other question": lambda: tf.executing_eagerly_outside_functions(),
    "an iterator": lambda: tf.data.Dataset.range(3).make_one_shot_iterator(),
    "disable_v2_behavior": tf.disable_v2_behavior,
    "disable_eager_execution": tf.disable_eager_execution,
}


@pytest.mark.parametrize("name", FIRST)
def test_graph_mode_begins_with_the_first_call(beginning: None, name: str) -> None:
    FIRST[name]()
    assert not tf2.executing_eagerly()
    assert isinstance(tf.placeholder(tf.float32), tf.Tensor)
    assert isinstance(tf.Variable(1.0), thalweg._graph.GraphVariable)  # pyright: ignore


# what relies on eager mode, or asks for it
EAGER: dict[str, Callable[[], Any]] = {
    "a variable of tf": lambda: tf2.Variable(1.0),
    "a constant of tf": lambda: tf2.constant(1.0),
    "the question of tf": tf2.executing_eagerly,
    "a step": lambda: thalweg.keras.optimizers.SGD(0.1).apply_gradients(
        [(torch.ones(2), thalweg.Variable([1.0, 2.0]))]
    ),
    "a tensor of torch": lambda: tf.reduce_sum(torch.ones(2)) + tf2.constant(1.0),
    "enable_v2_behavior": tf.enable_v2_behavior,
    "enable_eager_execution": tf.enable_eager_execution,
}


@pytest.mark.parametrize("name", EAGER)
def test_eager_mode_is_fixed_once_used(beginning: None, name: str) -> None:
    EAGER[name]()
    assert isinstance(tf.constant(2), torch.Tensor)
    with pytest.raises(FailedPreconditionError, match=r"disable_eager_execution\(\) before"):
        tf.placeholder(tf.float32)
    tf.disable_v2_behavior()
    assert isinstance(tf.placeholder(tf.float32), tf.Tensor)


# what decides nothing
UNDECIDED: dict[str, Callable[[], Any]] = {
    "a block": lambda: _in_a_block(),
    "an optimizer": lambda: tf.train.AdamOptimizer(0.1),
    "an initializer": lambda: tf.zeros_initializer(),
    "switches": lambda: (tf.disable_resource_variables(), tf.disable_v2_tensorshape()),
    "a session": lambda: tf.Session().close(),
    "is_tensor": lambda: tf.is_tensor(3),
    "a tensor of torch alone": lambda: tf.reduce_sum(torch.ones(2)),
    "a dataset": lambda: tf.data.Dataset.from_tensor_slices([1, 2]).batch(2),
}


def _in_a_block() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(tf.Variable(1.0).initializer) is None


@pytest.mark.parametrize("name", UNDECIDED)
def test_undecided_calls_do_not_fix_the_mode(beginning: None, name: str) -> None:
    UNDECIDED[name]()
    assert not process.is_mode_fixed


def test_variables_before_the_first_placeholder_are_of_the_graph(beginning: None) -> None:
    state = tf.Variable(0, name="counter")
    update = tf.assign(state, tf.add(state, tf.constant(1)))
    x = tf.placeholder(tf.int32, [])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(update)
        assert session.run(state * x, {x: 10}) == 30
    assert isinstance(state, tf.Variable)
    assert state.name == "counter:0"


def test_import_does_not_fix_the_mode() -> None:
    process = fresh_process.run(
        "import thalweg.tf.compat.v1 as tf\n"
        "from thalweg._base.execution_context import process\n"
        "print(process.is_mode_fixed)\n"
        "a = tf.constant(2)\n"
        "session = tf.Session()\n"
        "print(session.run(a + 3), tf.__version__, tf.VERSION, tf.version.VERSION)\n"
    )
    assert process.stdout == "False\n5 1.15.0 1.15.0 1.15.0\n", process.stderr


def test_version_strings_can_be_parsed() -> None:
    assert [int(part) for part in tf2.__version__.split(".")] == [2, 16, 0]
    assert tf2.__version__ == tf2.VERSION == tf2.version.VERSION
    assert tf2.version.GIT_VERSION.endswith(thalweg.__version__)


def test_compat_has_both_versions_and_text() -> None:
    assert tf2.compat.v1 is tf
    assert tf.compat.v2 is tf2
    assert tf2.compat.as_text(b"ab") == tf2.compat.as_str("ab") == tf2.compat.as_str_any(b"ab")
    assert tf2.compat.as_bytes("ab") == b"ab"
    assert tf2.compat.as_str_any(3) == "3"

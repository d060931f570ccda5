"""One call of `apply_gradients` adds one update to a graph, whoever wrote the method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import thalweg.tf as tf
from thalweg.v1 import contrib, train

v1 = tf.compat.v1


@pytest.fixture
def session() -> Iterator[Any]:
    with tf.Graph().as_default(), v1.Session() as session:
        yield session


def checked(fails: Any, control_input: Any) -> Any:
    """An operation after `after` that fails where `fails` is not 0."""
    with tf.control_dependencies([control_input]):
        return v1.assert_equal(fails, 0.0)


class Assigning(train.Optimizer):
    """Assigns by itself, variable by variable, to variables of its own, too."""

    def __init__(self, fails: Any) -> None:
        super().__init__(False, "Assigning")
        self._fails = fails

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        updates = [] if global_step is None else [global_step.assign_add(1)]
        for grad, var in grads_and_vars:
            m = v1.get_variable(
                f"{var.op.name}/m", shape=[1], initializer=v1.zeros_initializer(), trainable=False
            )
            new_m = m.assign(m * 0.5 + grad)
            updates += [new_m, var.assign(var - new_m)]
            updates.append(checked(self._fails, updates[-1]))
        return tf.group(*updates, name=name)


class Twice(train.MomentumOptimizer):
    """Takes a step with one half of the variables, and then with the other."""

    def __init__(self, fails: Any) -> None:
        super().__init__(0.1, 0.9)
        self._fails = fails

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        first, second = list(grads_and_vars)
        first_op = super().apply_gradients([first], global_step)
        with tf.control_dependencies([checked(self._fails, first_op)]):
            two = super().apply_gradients([second])
        return tf.group(first_op, two, checked(self._fails, two), name=name)


class Around(train.Optimizer):
    """Has another optimizer apply gradients, and does something after it."""

    def __init__(self, inner: Any, fails: Any) -> None:
        super().__init__(False, "Around")
        self._inner, self._fails = inner, fails

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        return checked(self._fails, self._inner.apply_gradients(grads_and_vars, global_step))


class InTorch(train.Optimizer):
    """Writes in place by torch's functions, and returns nothing."""

    def __init__(self, fails: Any) -> None:
        super().__init__(False, "InTorch")
        self._fails = fails

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        for grad, var in grads_and_vars:
            var.mul_(0.5)
            with tf.control_dependencies([checked(self._fails, var.op)]):
                var.sub_(tf.identity(grad))


class Mixed:
    """An `apply_gradients` of a class that is no optimizer."""

    fails: Any = None

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        train_op: Any = super().apply_gradients(*args, **kwargs)  # pyright: ignore
        return checked(self.fails, train_op)


def mixed_with(cls: type[Any], *args: Any) -> Callable[[Any], Any]:
    """Makes an optimizer of such a class and another."""

    def make(fails: Any) -> Any:
        return type("WithMixin", (Mixed, cls), {"fails": fails})(*args)

    return make


V1: dict[str, Callable[[Any], Any]] = {
    "assigning": Assigning,
    "twice": Twice,
    "around Adam": lambda fails: Around(train.AdamOptimizer(0.1), fails),
    "around RMSProp": lambda fails: Around(train.RMSPropOptimizer(0.1, momentum=0.9), fails),
    "around Ftrl": lambda fails: Around(train.FtrlOptimizer(0.1), fails),
    "around AdagradDA": lambda fails: Around(
        train.AdagradDAOptimizer(0.1, v1.train.get_or_create_global_step()), fails
    ),
    "around a loss scale": lambda fails: Around(
        train.experimental.MixedPrecisionLossScaleOptimizer(train.AdamOptimizer(0.1), "dynamic"),
        fails,
    ),
    "in a loss scale": lambda fails: train.experimental.MixedPrecisionLossScaleOptimizer(
        Assigning(fails), "dynamic"
    ),
    "a mixin": mixed_with(train.AdamOptimizer, 0.1),
    "a mixin of decay": mixed_with(contrib.opt.AdamWOptimizer, 0.1, 0.1),
    "around averages": lambda fails: Around(
        contrib.opt.MovingAverageOptimizer(train.AdamOptimizer(0.1)), fails
    ),
    "around decay": lambda fails: Around(contrib.opt.AdamWOptimizer(0.1, 0.1), fails),
    "around itself": lambda fails: Around(Assigning(fails), fails),
    "averages around it": lambda fails: contrib.opt.MovingAverageOptimizer(Assigning(fails)),
    "in torch": InTorch,
}


# Torch's functions that write are for hooks outside of branches.
PLACES = [
    (case, nested) for case in V1 for nested in (False, True) if not (nested and case == "in torch")
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("case", "nested"), PLACES)
def test_failing_override_of_apply_gradients_is_undone(
    session: Any, case: str, nested: bool
) -> None:
    a, b = v1.Variable([1.0], name="a"), v1.Variable([2.0], name="b")
    fails = v1.placeholder(tf.float32, [])
    step = v1.train.get_or_create_global_step()
    opt, pairs = V1[case](fails), [(a * 1.0, a), (tf.ones([1]), b)]

    def apply() -> Any:
        return tf.group(opt.apply_gradients(pairs, step))

    op = tf.cond(fails > -1.0, apply, tf.no_op) if nested else apply()
    session.run(v1.global_variables_initializer())
    check_put_back(session, op, fails, (a, b))


def check_put_back(session: Any, op: Any, fails: Any, trained: Any) -> None:
    """A run that fails changes nothing, and the runs around it do."""
    everything, start = v1.global_variables(), session.run(list(trained))
    session.run(op, {fails: 0.0})
    old_values = session.run(everything)
    with pytest.raises(Exception, match="assert") as raised:
        session.run(op, {fails: 1.0})
    assert "The step was not taken: no variable and no slot has changed." in raised.value.__notes__
    for var, new, old in zip(everything, session.run(everything), old_values, strict=True):
        np.testing.assert_array_equal(new, old, err_msg=var.name)
    session.run(op, {fails: 0.0})
    for trained_value, start_value in zip(session.run(list(trained)), start, strict=True):
        assert (trained_value != start_value).all()

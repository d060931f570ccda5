"""An exception in the user's own code: the step is taken as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thalweg
from failing_callable import NOT_TAKEN, Fuse, errors
from keras_table import assert_same_bits, both_engines, gradients, pair, snapshot, train
from thalweg.keras.optimizers import SGD, Adam, Optimizer, RuleOptimizer, schedules

afterwards = pytest.mark.parametrize("steps", [0, 3], ids=["first step", "fourth step"])


def failing_schedule(fuse: Fuse) -> Any:
    class Schedule(schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return fuse(0.5)

        def get_config(self) -> dict[str, Any]:
            return {}

    return Schedule()


def failing_rule(fuse: Fuse) -> Any:
    def prepare(*, learning_rate):
        fuse()
        return {"rate": learning_rate * 2}

    return RuleOptimizer(thalweg.Rule(name="Mine", update=doubled, prepare=prepare))


def doubled(var, grad, *, rate):
    return (var - rate * grad,)


class Hooked(Optimizer):
    """A user's optimizer whose update fails at the second variable."""

    def __init__(self, fuse: Fuse) -> None:
        super().__init__("Hooked")
        self.fuse = fuse

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self.add_slot(var, "sum")

    def _resource_apply_dense(self, grad: Any, var: Any) -> None:
        self.get_slot(var, "sum").add_(grad)
        var.sub_(grad)
        if var.name == "b:0":
            self.fuse()


class HookedAdam(Adam):
    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
        super()._resource_apply_dense(grad, var, apply_state)
        if var.name == "b:0":
            self.fuse()


def hooked_adam(fuse: Fuse) -> Any:
    opt = HookedAdam()
    opt.fuse = fuse
    return opt


class Overriding(Adam):
    """Adam with one of Keras' hooks overridden, which fails after its work is done."""

    def at(self, hook: str, hook_output: Any) -> Any:
        return self.fuse(hook_output) if hook == self.hook else hook_output

    def _prepare(self, var_list: Any) -> Any:
        return self.at("_prepare", super()._prepare(var_list))

    def _decayed_lr(self, var_dtype: Any) -> Any:
        return self.at("_decayed_lr", super()._decayed_lr(var_dtype))

    def _transform_unaggregated_gradients(self, grads_and_vars: Any) -> Any:
        pairs = list(super()._transform_unaggregated_gradients(grads_and_vars))
        return self.at("_transform_unaggregated_gradients", pairs)

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        return self.at("_aggregate_gradients", list(super()._aggregate_gradients(grads_and_vars)))

    def _transform_gradients(self, grads_and_vars: Any) -> Any:
        return self.at("_transform_gradients", list(super()._transform_gradients(grads_and_vars)))


def overriding(hook: str) -> Callable[[Fuse], Any]:
    def make(fuse: Fuse) -> Any:
        opt = Overriding()
        opt.fuse, opt.hook = fuse, hook
        return opt

    return make


HOOKS = ("_prepare", "_decayed_lr", "_transform_unaggregated_gradients", "_aggregate_gradients",
         "_transform_gradients")  # fmt: skip
MAKERS = {
    **{hook: overriding(hook) for hook in HOOKS},
    "callable": lambda fuse: Adam(lambda: fuse(0.5)),
    "callable hyper": lambda fuse: Adam(beta_1=lambda: fuse(0.5)),
    "schedule": lambda fuse: Adam(failing_schedule(fuse)),
    "aggregator": lambda fuse: Adam(gradient_aggregator=fuse),
    "transformer": lambda fuse: Adam(gradient_transformers=[list, fuse]),
    "prepare": failing_rule,
    "hook": Hooked,
    "hook over a rule": hooked_adam,
}


@pytest.mark.one_in(3)
@both_engines
@errors
@afterwards
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_interrupted_step_is_not_taken(make: Any, steps: int, error: Any, engine: str) -> None:
    fuse, variables = Fuse(error), pair()
    opt = make(fuse)
    opt.engine = engine
    train(opt, variables, steps)
    state_before, start = snapshot(opt, variables), [var.numpy() for var in variables]
    fuse.lit = True
    with pytest.raises(error, match="burnt") as raised:
        opt.apply_gradients(gradients(variables, 9))
    assert raised.value.__notes__ == [NOT_TAKEN]
    assert all(np.array_equal(var.numpy(), old) for var, old in zip(variables, start, strict=True))
    assert opt.iterations.item() == steps
    if steps:
        assert_same_bits(snapshot(opt, variables), state_before)


@pytest.mark.one_in(3)
@both_engines
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_step_after_interruption_equals_undisturbed_step(make: Any, engine: str) -> None:
    fuse, variables, twins = Fuse(RuntimeError), pair(), pair()
    opt, plain_opt = make(fuse), make(Fuse(RuntimeError))
    opt.engine = plain_opt.engine = engine
    train(opt, variables, 2), train(plain_opt, twins, 2)
    fuse.lit = True
    with pytest.raises(RuntimeError, match="burnt"):
        opt.apply_gradients(gradients(variables, 9))
    fuse.lit = False
    train(opt, variables, 2, first=3), train(plain_opt, twins, 2, first=3)
    assert_same_bits(snapshot(opt, variables), snapshot(plain_opt, twins))


@errors
@afterwards
def test_failing_loss_changes_nothing(steps: int, error: Any) -> None:
    fuse, variables = Fuse(error), pair()
    opt = Adam()
    train(opt, variables, steps)
    state_before = snapshot(opt, variables)
    fuse.lit = True
    with pytest.raises(error, match="burnt"):
        opt.minimize(fuse, variables)
    assert_same_bits(snapshot(opt, variables), state_before)
    fuse.lit = False
    opt.minimize(lambda: (variables[0] * variables[1]).sum(), variables)
    assert opt.iterations.item() == steps + 1


@both_engines
@errors
def test_failing_constraint_leaves_the_update_done(error: Any, engine: str) -> None:
    fuse = Fuse(error)
    a = thalweg.Variable([1.0], "a", constraint=lambda x: fuse(x))
    b = thalweg.Variable([1.0], "b", constraint=lambda x: x.clamp(min=0))
    opt = SGD(1.0, momentum=0.5)
    opt.engine = engine
    fuse.lit = True
    with pytest.raises(error, match="burnt") as raised:
        opt.apply_gradients([([2.0], a), ([2.0], b)])
    assert "The step was taken, but without the constraint of 'a:0'." in raised.value.__notes__
    assert (a.item(), b.item(), opt.iterations.item()) == (-1.0, 0.0, 1)
    assert opt.get_slot(b, "momentum").item() == -2.0


@errors
def test_failing_constraint_after_a_hook_is_noted(error: Any) -> None:
    fuse = Fuse(error)
    a = thalweg.Variable([1.0], "a", constraint=lambda x: fuse(x))
    b = thalweg.Variable([1.0], "b")
    opt = Hooked(Fuse(error))
    fuse.lit = True
    with pytest.raises(error, match="burnt") as raised:
        opt.apply_gradients([([2.0], a), ([2.0], b)])
    assert "The step was taken, but without the constraint of 'a:0'." in raised.value.__notes__
    assert (a.item(), b.item(), opt.iterations.item()) == (-1.0, -1.0, 1)


def test_constraint_of_wrong_shape_raises() -> None:
    w = thalweg.Variable([1.0, 1.0], "w", constraint=lambda x: torch.ones(3))
    opt = SGD(1.0)
    with pytest.raises(ValueError, match=r"constraint of 'w:0' returned .*\(3,\)"):
        opt.apply_gradients([([2.0, 2.0], w)])
    assert (w.numpy().tolist(), opt.iterations.item()) == ([-1.0, -1.0], 1)


class Weighted(Hooked):
    """It keeps a weight of no variable, too."""

    def __init__(self, fuse: Fuse) -> None:
        super().__init__(fuse)
        self.total = self.add_weight("total", (), initializer="ones")

    def _resource_apply_dense(self, grad: Any, var: Any) -> None:
        self.total.mul_(2)
        super()._resource_apply_dense(grad, var)


@errors
@afterwards
def test_failed_step_restores_added_weights(steps: int, error: Any) -> None:
    fuse, variables = Fuse(error), pair()
    opt = Weighted(fuse)
    train(opt, variables, steps)
    fuse.lit = True
    with pytest.raises(error, match="burnt"):
        opt.apply_gradients(gradients(variables, 9))
    assert opt.total.item() == 4**steps


def raising(error: BaseException) -> Any:
    def constraint(x: Tensor) -> torch.Tensor:
        raise error

    return constraint


@pytest.mark.parametrize("make", [lambda: SGD(1.0), lambda: Hooked(Fuse(RuntimeError))])
@pytest.mark.parametrize("first", [True, False])
def test_an_interruption_comes_before_other_errors(make: Any, first: bool) -> None:
    errors = [RuntimeError("ordinary"), KeyboardInterrupt("stop")]
    variables = [
        thalweg.Variable([1.0], name, constraint=raising(error))
        for name, error in zip("ab", errors[:: -1 if first else 1], strict=True)
    ]
    opt = make()
    with pytest.raises(KeyboardInterrupt, match="stop") as raised:
        opt.apply_gradients([([2.0], var) for var in variables])
    assert "Also: RuntimeError: ordinary" in raised.value.__notes__
    assert [var.item() for var in variables] == [-1.0, -1.0]
    assert opt.iterations.item() == 1


def test_first_of_several_errors_is_raised() -> None:
    errors = [ValueError("one"), RuntimeError("two")]
    variables = [thalweg.Variable([1.0], "w", constraint=raising(error)) for error in errors]
    with pytest.raises(ValueError, match="one") as raised:
        SGD(1.0).apply_gradients([([2.0], var) for var in variables])
    assert "Also: RuntimeError: two" in raised.value.__notes__

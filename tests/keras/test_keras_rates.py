"""The learning rate of a step: overridden by subclasses, asked of callables, between steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thalweg
from bit_comparison import assert_same
from keras_table import (
    Row,
    all_rows,
    assert_same_bits,
    both_engines,
    gradients,
    mixed_variables,
    pair,
    snapshot,
    train,
)
from thalweg import Variable
from thalweg.keras.optimizers import SGD, Adam, Optimizer, schedules


def with_coefficients(cls: type[Any], factor: float) -> type[Any]:
    """A subclass whose hook scales the learning rate of the step."""

    def _prepare_local(self: Any, var_device: Any, var_dtype: Any, apply_state: Any) -> None:
        cls._prepare_local(self, var_device, var_dtype, apply_state)
        apply_state[var_device, var_dtype]["lr_t"] = (
            apply_state[var_device, var_dtype]["lr_t"] * factor
        )

    return type(cls.__name__, (cls,), {"_prepare_local": _prepare_local})


@both_engines
@all_rows
def test_coefficients_that_a_subclass_changes_are_used(row: Row, engine: str) -> None:
    opt, plain_opt = with_coefficients(row.cls, 0.5)(0.25), row.cls(0.125)
    opt.engine = plain_opt.engine = engine
    variables, twins = pair(), pair()
    train(opt, variables, 3), train(plain_opt, twins, 3)
    assert_same(variables, twins)


@pytest.mark.one_in(3)
@both_engines
@all_rows
def test_unchanged_coefficients_do_not_affect_the_step(row: Row, engine: str) -> None:
    opt, plain_opt = with_coefficients(row.cls, 1.0)(0.1), row.cls(0.1)
    opt.engine = plain_opt.engine = engine
    variables, twins = mixed_variables(), mixed_variables()
    train(opt, variables, 3), train(plain_opt, twins, 3)
    assert_same_bits(snapshot(opt, variables), snapshot(plain_opt, twins))


def test_changed_schedule_coefficients_are_used() -> None:
    opt = with_coefficients(SGD, 2.0)(schedules.ExponentialDecay(1.0, 1, 0.5))
    w = thalweg.Variable([0.0])
    for expected in (-2.0, -3.0, -3.5):
        opt.apply_gradients([([1.0], w)])
        assert w.item() == expected


def test_changed_coefficients_end_with_their_step() -> None:
    opt, w = with_coefficients(SGD, 0.5)(1.0), thalweg.Variable([0.0])
    opt.apply_gradients([([1.0], w)])
    assert opt._decayed_lr(torch.float32).item() == 1.0


@both_engines
def test_an_override_of_the_decayed_rate_may_call_super(engine: str) -> None:
    class Halved(SGD):
        def _decayed_lr(self, var_dtype: torch.dtype) -> torch.Tensor:
            return super()._decayed_lr(var_dtype) * 0.5

    opt, w = Halved(1.0), thalweg.Variable([0.0])
    opt.engine = engine
    for expected in (-0.5, -1.0, -1.5):
        opt.apply_gradients([([1.0], w)])
        assert w.item() == expected


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_decayed_rate_between_steps_is_the_present_one(steps: int) -> None:
    rates = [1.0]
    opt = SGD(lambda: rates[0])
    train(opt, pair(), steps)
    for rate in (0.5, 0.25):
        rates[0] = rate
        assert opt._decayed_lr(torch.float32).item() == rate
        assert opt.learning_rate == rate


def test_decayed_rate_after_a_failed_step_is_the_present_one() -> None:
    rates = [1.0]
    opt = SGD(lambda: rates[0], gradient_transformers=[lambda pairs: 1 / 0])
    with pytest.raises(ZeroDivisionError):
        train(opt, pair())
    rates[0] = 0.5
    assert opt._decayed_lr(torch.float32).item() == 0.5


class Counted(schedules.LearningRateSchedule):
    """A schedule that counts its calls."""

    def __init__(self, act: Any = lambda: None) -> None:
        self.calls, self.act = 0, act

    def __call__(self, step: Any) -> float:
        self.calls += 1
        self.act()
        return 0.5


def counted(kind: str, act: Any = lambda: None) -> Any:
    """A callable or a schedule that counts its calls."""
    schedule = Counted(act)
    if kind == "schedule":
        return schedule, schedule
    return (lambda: schedule(0)), schedule


kinds = pytest.mark.parametrize("kind", ["callable", "schedule"])


@kinds
def test_hooks_and_hypers_of_a_step_share_one_call(kind: str) -> None:
    rate, count = counted(kind)

    class Plain(Optimizer):
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
            var.sub_(self._decayed_lr(var.dtype) * grad)

    opt, variables = Plain("Plain"), pair()
    opt._set_hyper("learning_rate", rate)
    for step in range(1, 4):
        opt.apply_gradients(gradients(variables, step))
        assert count.calls == step


def test_get_hyper_in_hooks_calls_once_a_step() -> None:
    calls: list[int] = []

    class Plain(Optimizer):
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
            var.sub_(self._get_hyper("speed", var.dtype) * grad)

    opt, variables = Plain("Plain"), pair()
    opt._set_hyper("speed", lambda: calls.append(1) or 0.5)
    opt.apply_gradients(gradients(variables))
    assert len(calls) == 1


def moved(var: Any) -> None:
    var.data = var.data.clone()


def of_another_shape(var: Any) -> None:
    var.data = torch.ones(9)


def of_another_dtype(var: Any) -> None:
    var.data = var.data.double()


def of_another_layout(var: Any) -> None:
    var.data = torch.ones(4, 1).expand(4, 2)


def dense_gradient() -> Any:
    return torch.ones(4, 2)


def sparse_gradient() -> Any:
    return thalweg.IndexedSlices(torch.ones(2, 2), torch.tensor([3, 0]))


steps_before = pytest.mark.parametrize("steps", [0, 2], ids=["first step", "third step"])
of_both_kinds = pytest.mark.parametrize("gradient", [dense_gradient, sparse_gradient])


@kinds
@steps_before
@of_both_kinds
@pytest.mark.parametrize("cls", [SGD, Adam])
def test_callable_rate_may_replace_the_variable_memory(
    kind: str, steps: int, gradient: Any, cls: Any
) -> None:
    w, twin, old = (torch.nn.Parameter(torch.ones(4, 2)) for _ in range(3))
    acts: list[Any] = []
    rate, count = counted(kind, lambda: acts.pop()() if acts else None)
    opt, plain_opt = cls(rate), cls(0.5)
    for _ in range(steps):
        opt.apply_gradients([(gradient(), w)]), plain_opt.apply_gradients([(gradient(), twin)])
    old, initial = w.data, w.detach().clone()
    acts.append(lambda: moved(w))
    opt.apply_gradients([(gradient(), w)]), plain_opt.apply_gradients([(gradient(), twin)])
    assert count.calls == opt.iterations.item() == steps + 1
    assert w.data_ptr() != old.data_ptr()
    assert_same([w], [twin])
    assert_same([old], [initial])


@kinds
@steps_before
@of_both_kinds
@pytest.mark.parametrize("act", [of_another_shape, of_another_dtype, of_another_layout])
def test_callable_rate_that_frees_variable_memory_raises(
    kind: str, steps: int, gradient: Any, act: Any
) -> None:
    w, acts = torch.nn.Parameter(torch.ones(4, 2)), []
    rate, count = counted(kind, lambda: acts.pop()() if acts else None)
    opt = Adam(rate)
    for _ in range(steps):
        opt.apply_gradients([(gradient(), w)])
    old, initial = w.data, w.detach().clone()
    slots = snapshot(opt, []) if steps else None
    acts.append(lambda: act(w))
    with pytest.raises(thalweg.ThalwegError, match="Variable:0"):
        opt.apply_gradients([(gradient(), w)])
    assert (count.calls, opt.iterations.item()) == (steps + 1, steps)
    assert_same([old], [initial])
    if slots:
        assert_same_bits(snapshot(opt, []), slots)


@both_engines
@of_both_kinds
@pytest.mark.parametrize("steps", [1, 3])
def test_variable_viewed_as_another_dtype_is_updated(
    engine: str, gradient: Any, steps: int
) -> None:
    w, opt = torch.nn.Parameter(torch.ones(4, 2, dtype=torch.float16)), SGD(0.5)
    opt.engine = engine
    slices = gradient()
    for _ in range(steps):
        opt.apply_gradients([(as_dtype(slices, torch.float16), w)])
    address = w.data_ptr()
    w.data = w.data.view(torch.bfloat16)
    w.data.fill_(2.0)
    opt.apply_gradients([(as_dtype(slices, torch.bfloat16), w)])
    assert (w.dtype, w.data_ptr()) == (torch.bfloat16, address)
    assert w[0].tolist() == [1.5, 1.5]
    assert w[1].tolist() == ([1.5, 1.5] if gradient is dense_gradient else [2.0, 2.0])


def as_dtype(grad: Any, dtype: torch.dtype) -> Any:
    if isinstance(grad, torch.Tensor):
        return grad.to(dtype)
    return thalweg.IndexedSlices(grad.values.to(dtype), grad.indices)


def test_an_override_of_the_decayed_learning_rate_counts() -> None:
    class Still(SGD):
        def _decayed_lr(self, var_dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros((), dtype=var_dtype)

    w = Variable([1.0], name="w")
    Still(1.0).apply_gradients([([1.0], w)])
    assert w.numpy().tolist() == [1]

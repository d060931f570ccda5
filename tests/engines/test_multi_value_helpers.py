"""Helpers of formulas that return several values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from thalweg.errors import RuleError
from thalweg.formula import Rule, Slot, sqrt, where
from thalweg.optim import RuleOptimizer


def means(m: Any, v: Any, grad: Any) -> Any:
    m = m + (grad - m) * 0.1
    return m, v + (grad * grad - v) * 0.01, grad > 0


def swapped(a: Any, b: Any) -> Any:
    return b, a


def update(var: Any, grad: Any, m: Any, v: Any, *, learning_rate: Any) -> Any:
    m, v, rises = means(m, v, grad)
    m, v = swapped(m, v)
    m, v = swapped(m, v)
    slow, _ = swapped(v, m)
    step = where(rises, slow, slow * 0.5) / (sqrt(v) + 0.001)
    return var - learning_rate * step, m, v


def plain(var: Any, grad: Any, m: Any, v: Any, *, learning_rate: Any) -> Any:
    m = m + (grad - m) * 0.1
    v = v + (grad * grad - v) * 0.01
    step = where(grad > 0, m, m * 0.5) / (sqrt(v) + 0.001)
    return var - learning_rate * step, m, v


SLOTS = Slot("m"), Slot("v")


def trained(formula: Any, engine: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    dice = torch.Generator().manual_seed(0)
    param = torch.nn.Parameter(torch.randn(70, generator=dice).to(dtype))
    with thalweg.engine(engine):
        opt = RuleOptimizer([param], Rule(name="Two", update=formula, slots=SLOTS))
        for _ in range(3):
            param.grad = torch.randn(70, generator=dice).to(dtype)
            opt.step()
    return [param.detach(), *(opt.state[param][name] for name in ("m", "v"))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_helpers_equal_inlined_formulas(engine: str, dtype: torch.dtype) -> None:
    results = trained(update, engine, dtype), trained(plain, engine, dtype)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_dropped_result_sets_no_condition() -> None:
    def doubled(x: Any, y: Any) -> Any:
        return x & (y > 0), 2 * y

    def descend(var: Any, grad: Any, *, learning_rate: Any) -> Any:
        _, step = doubled(learning_rate, grad)
        return var - learning_rate * step

    param = torch.nn.Parameter(torch.ones(3))
    opt = RuleOptimizer([param], Rule(name="Dropped", update=descend), learning_rate=0.5)
    param.grad = torch.ones(3)
    opt.step()
    assert param.tolist() == [0.0] * 3


def test_formula_with_helpers_runs_as_plain_python() -> None:
    number = np.float64
    actual = update(number(1), number(2), number(0), number(0), learning_rate=number(0.1))
    assert actual == plain(number(1), number(2), number(0), number(0), learning_rate=number(0.1))


def of_numbers(var: Any, grad: Any, *, learning_rate: Any) -> Any:
    a, b = var, grad
    return a - learning_rate * b


def of_too_few(var: Any, grad: Any, *, learning_rate: Any) -> Any:
    a, b = means(var, grad, grad)
    return a - learning_rate * b


def of_one_name(var: Any, grad: Any, *, learning_rate: Any) -> Any:
    a, a, _ = means(var, grad, grad)
    return a - learning_rate


def within(var: Any, grad: Any, *, learning_rate: Any) -> Any:
    return var - learning_rate * swapped(var, grad)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (of_numbers, "assign one name at a time, or what a helper function returns"),
        (of_too_few, "`means` returns 3 values, not 2"),
        (of_one_name, "assign one name at a time, or what a helper function returns"),
        (within, r"`swapped` returns 2 values: write `a, b = swapped\(var, grad\)` before"),
    ],
)
def test_unsupported_helpers_raise(formula: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        thalweg.check_rule(Rule(name="Bad", update=formula))

"""Formulas that follow another in one pass over memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thalweg import Hyper, Rule, Slot, optim, where
from thalweg import engine as engine_of
from thalweg.formula import ChainedFormula

F = np.float32


def update(var: Any, grad: Any, *, learning_rate: Any) -> Any:
    step = learning_rate * grad
    return (var - step,)


def average(var: Any, value: Any, *, weight: Any) -> Any:
    step = weight * (var - value)
    return value + step


def look_ahead(var: Any, slow: Any, *, weight: Any, due: Any) -> Any:
    step = slow + weight * (var - slow)
    kept = where(due > 0.5, step, slow)
    return where(due > 0.5, step, var), kept


def rule() -> Rule:
    return Rule(
        name="three in a row",
        update=ChainedFormula(ChainedFormula(update, average), look_ahead),
        slots=(Slot("average"), Slot("slow")),
        hypers=(Hyper("learning_rate", 0.1), Hyper("weight", 0.25), Hyper("due", 1.0)),
    )


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("due", [0.0, 1.0])
def test_chained_formulas_keep_separate_names(engine: str, due: float) -> None:
    values = np.linspace(-2, 2, 1001, dtype=F)
    param = torch.tensor(values, requires_grad=True)
    with engine_of(engine):
        optimizer = optim.RuleOptimizer([param], rule(), due=due)
        expected, mean, slow = values, np.zeros_like(values), np.zeros_like(values)
        for grad in (np.sin(values), np.cos(values)):
            param.grad = torch.tensor(grad)
            optimizer.step()
            expected = expected - F(0.1) * grad
            mean = mean + F(0.25) * (expected - mean)
            if due:
                expected = slow = slow + F(0.25) * (expected - slow)
    np.testing.assert_array_equal(param.detach().numpy(), expected)
    np.testing.assert_array_equal(optimizer.state[param]["average"].numpy(), mean)
    np.testing.assert_array_equal(optimizer.state[param]["slow"].numpy(), slow)


def four(var: Any, grad: Any, a: Any, b: Any, c: Any, d: Any, *, learning_rate: Any) -> Any:
    return var - learning_rate * grad, a + grad, b + grad, c + grad, d + grad


def test_rules_of_many_slots_are_averaged_in_rows_without_a_gradient_too() -> None:
    slots = tuple(map(Slot, "abcd"))
    kind = Rule(name="four", update=four, slots=slots, hypers=(Hyper("learning_rate", 0.5),))
    param = torch.ones(3, 1, requires_grad=True)
    optimizer = optim.RuleOptimizer([param], kind, ema_decay=0.75)
    for row in (0, 1):
        param.grad = torch.sparse_coo_tensor([[row]], [[2.0]], (3, 1), check_invariants=True)
        optimizer.step()
    assert param.flatten().tolist() == [0.0, 0.0, 1.0]
    assert optimizer.state[param]["ema"].flatten().tolist() == [0.0, 0.75, 1.0]
    assert optimizer.state[param]["d"].flatten().tolist() == [2.0, 2.0, 0.0]


def test_rule_of_seven_slots_is_averaged() -> None:
    def seven(var, grad, a, b, c, d, e, f, g, *, learning_rate):  # pyright: ignore
        return var - learning_rate * grad, a, b, c, d, e, f, g + grad

    kind = Rule(
        name="seven",
        update=seven,
        slots=tuple(map(Slot, "abcdefg")),
        hypers=(Hyper("learning_rate", 0.5),),
    )
    param = torch.ones(1, requires_grad=True)
    optimizer = optim.RuleOptimizer([param], kind, ema_decay=0.75)
    param.grad = torch.tensor([2.0])
    optimizer.step()
    state = optimizer.state[param]
    assert [float(x.detach()) for x in (param, state["g"], state["ema"])] == [0.0, 2.0, 0.0]

"""Levels of measures that a rule has by itself; those of wrappers are with the options."""

from __future__ import annotations

from typing import Any

import pytest

import thalweg
from thalweg import Rule, Variable
from thalweg.errors import RuleError
from thalweg.formula import Level
from thalweg.keras.optimizers import RuleOptimizer


def square(var: Any, grad: Any) -> Any:
    return grad * grad


def scaled(var: Any, grad: Any, *, scale: Any) -> Any:
    return grad * scale


def to_number(var: Any, grad: Any, *, first: Any, second: Any) -> Any:
    return var * 0.0 + (first * 100.0 + second)


def step_of(rule: Rule, engine: Any) -> list[float]:
    thalweg.check_rule(rule)
    w = Variable([1.0, 2.0], name="w")
    with thalweg.engine(engine):
        RuleOptimizer(rule).apply_gradients([([1.0, 1.0], w)])
    return w.tolist()


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("start", ["measures", "levels"])
def test_levels_use_scalars_of_earlier_levels(start: str, engine: str) -> None:
    first: dict[str, Any] = {
        "measures": {"squares": square},
        "per_variable": lambda *, squares: {"scale": squares},
    }
    levels = (
        Level({"total": scaled}, lambda *, total: {"scale": total + 1.0, "first": total}),
        Level({"total": scaled}, lambda *, total: {"second": total}),
    )
    if start == "levels":
        first, levels = {}, (Level(**first), *levels)
    rule = Rule(name="Levels", update=to_number, levels=levels, **first)
    # Two elements: their squares add up to 2, twice 2 are 4, and twice 4 + 1 are 10.
    assert step_of(rule, engine) == [410.0, 410.0]


@pytest.mark.parametrize("levels", [Level({"a": square}, dict), (square,), [], "x"])
def test_levels_must_be_a_tuple(levels: Any) -> None:
    with pytest.raises(RuleError, match="levels of rule 'R' must be a tuple"):
        Rule(name="R", update=square, levels=levels)

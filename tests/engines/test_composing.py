"""Two formulas as one: the names of one are none of the other's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import thalweg
from rulebook import assert_same
from thalweg import Hyper, Rule, Slot, optim
from thalweg.formula import WrappedStepFormula, moved

RATE, DECAY = Hyper("learning_rate", 0.125), Hyper("weight_decay", 0.25)


def plain(var, grad, m, *, learning_rate, weight_decay):
    rate = learning_rate * 0.5
    m = m * 0.5 + grad * 0.75
    step = rate * m
    return moved(var * (1 - learning_rate * weight_decay), -step), m


def crowded(var, grad, ema, *, learning_rate, weight_decay):
    """Compute `plain` with names that options use."""
    slow = 1 - learning_rate * weight_decay
    slow_share = learning_rate * 0.5
    trust_scale = 0.5
    sphere_back = 0.75
    ema_weight = ema * trust_scale
    ema = ema_weight + grad * sphere_back
    cautious_gain = slow_share * ema
    sphere_along = cautious_gain
    then_made = var * slow
    return moved(then_made, -sphere_along), ema


def hurried(var, grad, m, *, learning_rate, weight_decay):
    """Compute `plain` and assign to the name of a scalar."""
    shrink = 1 - learning_rate * weight_decay
    learning_rate = learning_rate * 0.5
    weight_decay = 0.75
    m = m * 0.5 + grad * weight_decay
    return moved(var * shrink, -(learning_rate * m)), m


SIMPLE = Rule(name="Plain", update=plain, hypers=(RATE, DECAY), slots=(Slot("m"),))
OPTIONS: list[dict[str, Any]] = [
    {"ema_decay": 0.75}, {"lookahead": 2}, {"lookahead": 2, "ema_decay": 0.75}, {"cautious": True},
    {"cautious_decay": True}, {"trust_ratio": True}, {"sphere": True},
    {"cautious_decay": True, "cautious": True, "lookahead": 2, "ema_decay": 0.75},
]  # fmt: skip


def trained(rule: Rule, **options: Any) -> list[torch.Tensor]:
    dice = torch.Generator().manual_seed(0)
    param = torch.randn(5, 4, generator=dice).requires_grad_()
    optimizer = optim.RuleOptimizer([param], rule, **options)
    for _ in range(4):
        param.grad = torch.randn(5, 4, generator=dice)
        optimizer.step()
    return [param.detach(), *optimizer.state[param].values()]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("update", [crowded, hurried])
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_formula_names_are_free_under_options(engine: Any, update: Any, options: Any) -> None:
    with thalweg.engine(engine):
        actual = trained(replace(SIMPLE, update=update), **options)
        assert_same(actual, trained(SIMPLE, **options))


def by_scale(var, grad, base, step, *, scale):
    return moved(base, scale * step)


def by_rate(var, grad, base, step, *, learning_rate):
    m = learning_rate * step
    return moved(base, m)


def scaled(var, grad, scale, *, learning_rate, weight_decay):
    """As `plain`, with a slot of the name of the wrapper's scalar."""
    rate = learning_rate * 0.5
    scale = scale * 0.5 + grad * 0.75
    return moved(var * (1 - learning_rate * weight_decay), -(rate * scale)), scale


@pytest.mark.parametrize(
    ("scale_by", "update"), [(by_scale, scaled), (by_rate, hurried), (by_rate, crowded)]
)
def test_formula_names_are_free_in_a_wrapper(scale_by: Any, update: Any) -> None:
    hypers = (RATE, DECAY, *[Hyper("scale", 0.25)] * (scale_by is by_scale))
    actual = [
        trained(replace(SIMPLE, update=WrappedStepFormula(formula, scale_by), hypers=hypers))
        for formula in (plain, update)
    ]
    assert_same(*actual)

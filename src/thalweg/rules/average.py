"""An exponential moving average of the variable, as one more slot of any rule."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from thalweg.formula import Formula, Rule, Slot, Then, where

EMA = "ema"
WEIGHT = "ema_weight"


def average(var: Any, ema: Any, *, ema_weight: Any) -> Any:
    """Once per element; `torch.optim.swa_utils.get_ema_avg_fn`, with 1 - decay as the weight."""
    difference = var - ema
    near = ema + ema_weight * difference
    return where(ema_weight < 0.5, near, var + (ema_weight - 1) * difference)


def _untouched_0(var):
    return (var,)


def _untouched_1(var, a):
    return var, a


def _untouched_2(var, a, b):
    return var, a, b


def _untouched_3(var, a, b, c):
    return var, a, b, c


# By the number of slots.
UNTOUCHED: tuple[Formula, ...] = (_untouched_0, _untouched_1, _untouched_2, _untouched_3)


@cache
def averaged(rule: Rule) -> Rule:
    """The rule with the average of its variable as a last slot.

    Rows that a sparse gradient does not name are averaged, too; entries of one row are added up.
    """
    others = rule.update_untouched or UNTOUCHED[len(rule.element_slots)]
    return replace(
        rule,
        name=f"{rule.name} with an average",
        update=Then(rule.update, average),
        update_sparse=rule.update_sparse and Then(rule.update_sparse, average),
        update_single=rule.update_single and Then(rule.update_single, average),
        update_untouched=Then(others, average),
        slots=(*rule.slots, Slot(EMA)),
        duplicates="sum",
    )

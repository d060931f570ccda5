"""Rules of rows and columns, made of parts that may be put together in any way."""

from __future__ import annotations

from typing import Any

from thalweg import Hyper, Measure, Pass, Rule, Slot, Stage
from thalweg.formula import absolute, like_update, maximum, sqrt, where

# What is measured; those of SECOND read what the first measure has made.


def gradients(var, grad, memory):
    return grad


def products(var, grad, memory, *, learning_rate):
    return var * grad - learning_rate * memory


@like_update
def roots(var, grad, memory):
    return sqrt(absolute(grad)) + memory


@like_update
def of_slots(var, grad, memory, *, tops, sides):
    return maximum(tops, sides) + grad * grad


def beside(var, grad, memory, *, first):
    return grad / (absolute(first) + 0.5)


@like_update
def below(var, grad, memory, *, first, tops):
    return where(grad > first, first, grad) + tops


FIRST = (gradients, products, roots, of_slots)
SECOND = (*FIRST, beside, below)


def of_values(var, grad, value, memory):
    return value * var


def keep_lines(*, tops, sides, value=None, learning_rate=1.0):
    return {"tops": tops * 0.5 + learning_rate, "sides": sides.abs().clamp(max=2.0) + 0.25}


def keep_first(*, first, tops, sides):
    return {"first": first * 0.75, "tops": tops + 1, "sides": sides + first.mean()}


def update(var, grad, memory, *, first, second, tops, sides, learning_rate):
    step = grad / (absolute(second) + 1) + first * 0.125 - sides * tops
    return var - learning_rate * step, memory * 0.5 + step


def make(value, grad, memory, *, first):
    return value * first + grad


def update_made(var, grad, value, memory, *, first, second, tops, sides, learning_rate):
    step = value + grad / (absolute(second) + 1) - sides * tops
    return var - learning_rate * step, memory * 0.5 + step


def rule_of(
    first: Any, second: Any, overs: Any, reduces: Any, stage: Any, has_pass: bool, has_stage: bool
) -> Rule:
    """Return a rule.

    Args:
        first, second: What is measured.
        overs, reduces: Of both.
        stage: A stage after the first measure; None for none.
        has_pass: Whether a pass makes a value of each element between the two.
        has_stage: Whether the last stage stands between them, so that each is a sweep.
    """
    default_stage = Stage(keep_lines)
    first_measure, second_measure = (
        Measure(formula, makes=name, over=axis, reduce=reduce)
        for formula, name, axis, reduce in zip(
            (first, second), ("first", "second"), overs, reduces, strict=True
        )
    )
    made_pass = (Pass(make, makes="value"),) if has_pass else ()
    if has_pass:  # what comes after a pass is given what it makes
        second_measure = Measure(of_values, makes="second", over=overs[1], reduce=reduces[1])
    stages = (Stage(stage),) if stage else (default_stage,) if has_stage else ()
    last_stages = () if default_stage in stages else (default_stage,)
    passes = (first_measure, *stages, *made_pass, second_measure, *last_stages)
    return Rule(
        name="Lines",
        passes=passes,
        update=update_made if has_pass else update,
        hypers=(Hyper("learning_rate", 0.125),),
        slots=(
            Slot("memory"),
            Slot("tops", per="row", initial=0.5),
            Slot("sides", per="column", initial=0.25),
        ),
    )

"""Wrapper that lengthens the steps of rows that hardly move (modded-nanogpt, 2026)."""

import sys
from dataclasses import replace
from functools import partial

from thalweg.errors import RuleError
from thalweg.formula import (
    FusedStage,
    Measure,
    Rule,
    Stage,
    StepMeasure,
    maximum,
    minimum,
    moved,
    sqrt,
    variable_squares,
    where,
)
from thalweg.rules.wrappers.base import around, check_rate, check_share, keep_by_rule
from thalweg.rules.wrappers.trust_ratio import step_squares

DEFAULT_LEAST = 0.3825  # smallest step of a row relative to its norm, at a rate of 1
_TINY, _HUGE = 1e-8, sys.float_info.max  # bounds of norms


def floored_step(var, grad, base, step, *, floor_step):
    """Return the updated variable; the step of a row is multiplied by `floor_step`."""
    return moved(base, step * floor_step)


def lengthen_rows(*, floor_step, floor_variable, learning_rate, row_floor_least):
    """Return the factor of each row's step; step lengths exclude the rate."""
    length = sqrt(floor_step) / abs(learning_rate)
    # A step of 0 at a rate of 0 has no length.
    length = where(length > _TINY, minimum(length, _HUGE), _TINY)
    return maximum(row_floor_least * maximum(sqrt(floor_variable), _TINY) / length, 1)


@keep_by_rule
def row_floor(rule: Rule, least: float = DEFAULT_LEAST) -> Rule:
    """Return a copy of the rule that lengthens short steps of matrix rows.

    A row's step, divided by the learning rate, is at least `least` times as long as the row. The
    last two dimensions of a variable are rows and columns.

    Raises:
        RuleError: The rule has no `learning_rate`, sums over variables, or is wrapped already.
        ValueError: `least` is not a positive number.
    """
    name = "with floors of rows"
    check_rate(rule, name)
    check_share("least", least, highest=None)
    if rule.all_levels:
        raise RuleError(
            f"Rule {rule.name!r} {name}: its step follows from sums over whole variables, which are"
            " taken after all that is measured of rows."
        )
    if "floor_step" in rule.seen:
        raise RuleError(f"Rule {rule.name!r} is {name} already.")
    passes = rule.passes
    if not rule.is_of_lines:  # its stages see whole matrices, and go on to
        passes = tuple(replace(x, of_matrices=True) if isinstance(x, Stage) else x for x in passes)
    stage = partial(lengthen_rows, row_floor_least=float(least))
    return around(
        rule,
        name,
        floored_step,
        "https://github.com/KellerJordan/modded-nanogpt/pull/328",
        passes=(
            *passes,
            Measure(StepMeasure(rule.update, step_squares), makes="floor_step", over="row"),
            Measure(variable_squares, makes="floor_variable", over="row"),
            FusedStage(stage, makes=("floor_step",)),
        ),
    )

"""Wrapper that lengthens the steps of rows that hardly move (modded-nanogpt, 2026)."""

from dataclasses import replace
from functools import partial

from thalweg.errors import RuleError
from thalweg.formula import Measure, Rule, Stage, StepMeasure, moved, variable_squares
from thalweg.rules.wrappers.base import around, check_rate, check_share, keep_by_rule
from thalweg.rules.wrappers.trust_ratio import step_squares

DEFAULT_LEAST = 0.3825  # smallest step of a row relative to its norm, at a rate of 1
_TINY = 1e-8  # lower bound of norms


def floored_step(var, grad, base, step, *, floor_step):
    """Return the updated variable; the step of a row is multiplied by `floor_step`."""
    return moved(base, step * floor_step)


def lengthen_rows(*, floor_step, floor_variable, learning_rate, row_floor_least):
    """Return {"floor_step": factor of each row's step}; step lengths exclude the rate."""
    rate = abs(learning_rate)
    length = (floor_step.sqrt() / rate).nan_to_num(nan=0.0).clamp(min=_TINY)
    target_length = row_floor_least * floor_variable.sqrt().clamp(min=_TINY)
    return {"floor_step": (target_length / length).clamp(min=1)}


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
    return around(
        rule,
        name,
        floored_step,
        "https://github.com/KellerJordan/modded-nanogpt/pull/328",
        passes=(
            *passes,
            Measure(StepMeasure(rule.update, step_squares), makes="floor_step", over="row"),
            Measure(variable_squares, makes="floor_variable", over="row"),
            Stage(partial(lengthen_rows, row_floor_least=float(least))),
        ),
    )

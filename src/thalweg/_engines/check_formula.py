"""Check the parameters and results of formulas against their rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg._engines.formula_arguments import check_given
from thalweg._engines.formula_parser import raise_unless_counts, trace_formula
from thalweg._engines.formula_source import place_of
from thalweg.errors import RuleError
from thalweg.formula import Rule


def check_value_counts(formula: Any, names: list[str], results: int, results_text: str) -> None:
    """Raise RuleError unless a formula takes `2 + len(names)` values and returns `results` values.

    Args:
        names: The names of the values after `var` and `grad`, for the error.
        results_text: A description of the expected results, for the error.
    """
    count, inputs = 2 + len(names), ", ".join(["var", "grad", *names])
    requirement = f"it must take {count} ({inputs}) and return {results} ({results_text})"
    raise_unless_counts(formula, count, results, requirement)


def check_numbers(rule: Rule, formula: Any, scalars: Mapping[str, Any]) -> None:
    """Raise RuleError if a scalar of a formula is missing in `scalars`, or is not a number."""
    formula_graph = trace_formula(formula)
    check_given(place_of(formula), formula_graph.scalars, scalars, rule)
    for name in formula_graph.scalars:
        try:
            float(scalars[name])
        except (TypeError, ValueError):
            raise RuleError(
                f"{place_of(formula)} takes the scalar {name}, which is {scalars[name]!r}, not a"
                " number."
            ) from None


def check_sides(slots: list[str], formula: Any, first: int, scalars: Mapping[str, Any]) -> None:
    """Raise RuleError if a formula takes a scalar by position, or takes a slot after the `*`.

    Args:
        slots: The names of the values that follow `var` and `grad`.
        first: The position of the first slot: 2, or 1 for a formula without a gradient.
        scalars: {name: scalar} that formulas of the rule may take.
    """
    formula_graph = trace_formula(formula)
    if len(formula_graph.positional) > first + len(slots):
        early = [
            name for name in formula_graph.positional[first:] if name in scalars.keys() - {*slots}
        ]
        if early:
            raise RuleError(
                f"{place_of(formula)} takes {', '.join(early)} by position; scalars come after *:"
                f" {_correct_signature(formula, early, [])}."
            )
    late = [name for name in formula_graph.scalars if name in slots and name not in scalars]
    if late:
        raise RuleError(
            f"{place_of(formula)} takes {', '.join(late)} after the *; slots come before it:"
            f" {_correct_signature(formula, [], late)}."
        )


def check_order(slots: list[str], formula: Any, has_gradient: bool) -> None:
    """Raise RuleError if a formula's positional parameters are in a wrong order.

    Args:
        slots: The names of the values that follow `var` and `grad`, in order.
        has_gradient: True if the formula takes `grad` after `var`.
    """
    positional, names = trace_formula(formula).positional, {"var", "grad", *slots}
    expected_names = ["var", *["grad"] * has_gradient, *slots]
    for name, expected in zip(positional, expected_names, strict=False):
        if name != expected and name in names:
            raise RuleError(
                f"{place_of(formula)} takes {', '.join(positional)}: {name} is where"
                f" {expected} comes. Values are given by position, in the order of the rule's"
                f" slots: {', '.join(expected_names)}."
            )


def _correct_signature(formula: Any, early: list[str], late: list[str]) -> str:
    """Return a `def` line with the names `early` moved behind the `*` and `late` before it."""
    formula_graph = trace_formula(formula)
    positional = [name for name in formula_graph.positional if name not in early] + late
    scalars = early + [name for name in formula_graph.scalars if name not in late]
    parameters = [*positional, *(["*"] if scalars else []), *scalars]
    return f"`def {formula.__name__}({', '.join(parameters)})`"

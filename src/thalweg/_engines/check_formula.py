"""What a formula takes, and what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg._engines.formula_arguments import check_given
from thalweg._engines.formula_graph import FormulaGraph
from thalweg._engines.formula_parser import count_of, place_of
from thalweg.errors import RuleError
from thalweg.formula import Rule


def check_taken(
    formula: Any, formula_graph: FormulaGraph, taken: list[str], results: int, returned: str
) -> None:
    """Raise unless a formula beside passes takes and returns as many values as its rule has."""
    wanted = 2 + len(taken)
    if (len(formula_graph.positional), len(formula_graph.results)) == (wanted, results):
        return
    raise RuleError(
        f"{place_of(formula)} takes {count_of(len(formula_graph.positional), 'value')} and returns"
        f" {len(formula_graph.results)}; it must take {wanted}"
        f" ({', '.join(['var', 'grad', *taken])}) and return {results} ({returned})."
    )


def check_numbers(
    rule: Rule, formula: Any, formula_graph: FormulaGraph, known: Mapping[str, Any]
) -> None:
    """Raise if a formula takes a scalar that is missing or not a number."""
    check_given(place_of(formula), formula_graph.scalars, known, rule)
    for name in formula_graph.scalars:
        try:
            float(known[name])
        except (TypeError, ValueError):
            raise RuleError(
                f"{place_of(formula)} asks for the scalar {name}, of which prepare makes"
                f" {known[name]!r}; that is no number."
            ) from None


def check_sides(
    slots: list[str],
    formula: Any,
    formula_graph: FormulaGraph,
    first: int,
    known: Mapping[str, Any],
) -> None:
    """Raise for a scalar before the `*`, or a slot after it."""
    if len(formula_graph.positional) > first + len(slots):
        early = [
            name for name in formula_graph.positional[first:] if name in known.keys() - {*slots}
        ]
        if early:
            raise RuleError(
                f"{place_of(formula)} takes {', '.join(early)} by position; scalars come after *:"
                f" {_signature_of(formula, formula_graph, early, [])}."
            )
    late = [name for name in formula_graph.scalars if name in slots and name not in known]
    if late:
        raise RuleError(
            f"{place_of(formula)} takes {', '.join(late)} after the *; slots come before it:"
            f" {_signature_of(formula, formula_graph, [], late)}."
        )


def check_order(slots: list[str], formula: Any, formula_graph: FormulaGraph, grad: bool) -> None:
    """Raise if parameters have the names of values in other places."""
    own = {"var", "grad"} - set(slots)
    wanted = ["var", *["grad"] * grad, *slots]
    for given, other in zip(formula_graph.positional, wanted, strict=False):
        if given != other and given in {*own, *slots}:
            raise RuleError(
                f"{place_of(formula)} takes {', '.join(formula_graph.positional)}: {given} is where"
                f" {other} comes. Values are given by position, in the order of the rule's"
                f" slots: {', '.join(wanted)}."
            )


def _signature_of(
    formula: Any, formula_graph: FormulaGraph, early: list[str], late: list[str]
) -> str:
    before = [name for name in formula_graph.positional if name not in early] + late
    after = early + [name for name in formula_graph.scalars if name not in late]
    return f"`def {formula.__name__}({', '.join([*before, *(['*'] if after else []), *after])})`"

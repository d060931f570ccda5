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
    formula: Any, transcript: FormulaGraph, taken: list[str], results: int, returned: str
) -> None:
    """Refuse a formula beside passes that takes or returns another number of values."""
    wanted = 2 + len(taken)
    if (len(transcript.positional), len(transcript.results)) == (wanted, results):
        return
    raise RuleError(
        f"{place_of(formula)} takes {count_of(len(transcript.positional), 'value')} and returns"
        f" {len(transcript.results)}; it must take {wanted} ({', '.join(['var', 'grad', *taken])})"
        f" and return {results} ({returned})."
    )


def check_numbers(
    rule: Rule, formula: Any, transcript: FormulaGraph, known: Mapping[str, Any]
) -> None:
    """Refuse a formula that asks for a scalar that nobody gives, or that is no number."""
    check_given(place_of(formula), transcript.scalars, known, rule)
    for name in transcript.scalars:
        try:
            float(known[name])
        except (TypeError, ValueError):
            raise RuleError(
                f"{place_of(formula)} asks for the scalar {name}, of which prepare makes"
                f" {known[name]!r}; that is no number."
            ) from None


def check_sides(
    slots: list[str], formula: Any, transcript: FormulaGraph, first: int, known: Mapping[str, Any]
) -> None:
    """Refuse a scalar before the `*` and a slot after it."""
    if len(transcript.positional) > first + len(slots):
        early = [name for name in transcript.positional[first:] if name in known.keys() - {*slots}]
        if early:
            raise RuleError(
                f"{place_of(formula)} takes {', '.join(early)} by position; scalars come after *:"
                f" {_signature_of(formula, transcript, early, [])}."
            )
    late = [name for name in transcript.scalars if name in slots and name not in known]
    if late:
        raise RuleError(
            f"{place_of(formula)} takes {', '.join(late)} after the *; slots come before it:"
            f" {_signature_of(formula, transcript, [], late)}."
        )


def check_order(slots: list[str], formula: Any, transcript: FormulaGraph, grad: bool) -> None:
    """Refuse parameters that have the name of what comes in another place."""
    own = {"var", "grad"} - set(slots)
    wanted = ["var", *["grad"] * grad, *slots]
    for given, other in zip(transcript.positional, wanted, strict=False):
        if given != other and given in {*own, *slots}:
            raise RuleError(
                f"{place_of(formula)} takes {', '.join(transcript.positional)}: {given} is where"
                f" {other} comes. Values are given by position, in the order of the rule's"
                f" slots: {', '.join(wanted)}."
            )


def _signature_of(formula: Any, transcript: FormulaGraph, early: list[str], late: list[str]) -> str:
    before = [name for name in transcript.positional if name not in early] + late
    after = early + [name for name in transcript.scalars if name not in late]
    return f"`def {formula.__name__}({', '.join([*before, *(['*'] if after else []), *after])})`"

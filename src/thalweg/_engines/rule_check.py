"""Check a whole rule before its first step: its formulas, what they take, what `prepare` makes."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Mapping
from numbers import Real
from typing import Any, cast

import numpy as np

from thalweg._base import scalars
from thalweg._base.composed_formula import ComposedFormula
from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg._engines.check_formula import check_numbers, check_order, check_sides, check_taken
from thalweg._engines.formula_arguments import check_given
from thalweg._engines.formula_parser import (
    LOCAL_PREFIX,
    check_counts,
    place_of,
    read_source,
    transcribe,
)
from thalweg.errors import RuleError
from thalweg.formula import FORMULAS, Rule

_FIRST_STEP = np.float32(1)
_OVER_VARIABLES = (
    ", where it is given arrays over the variables: write where(...), maximum(...) and sqrt(...),"
    " from thalweg import where, maximum, sqrt"
)


def check_rule(rule: Rule, hypers: Mapping[str, Any] | None = None) -> None:
    """Refuse a rule that could not take a step; compiles nothing and changes nothing.

    `prepare` is called once, with scalars of the first step, and each stage over small matrices.

    Args:
        rule: The rule.
        hypers: Values for `prepare`, by name; the defaults stand for those left out and for what
            is no plain number, as a schedule or a callable.

    Raises:
        RuleError: A formula holds anything but straight arithmetic, takes or returns another
            number of values than the rule has slots, or asks for a scalar that nobody gives;
            `prepare` fails or returns no dict of numbers. Names the rule, and the file and line.
    """
    try:
        first = _first_scalars(rule, hypers or {})
        known = {**first, **_made_of_measures(rule, first)}
        if any(slot.storage is not None for slot in rule.slots):
            with importing:
                from thalweg._engines.codecs.rules import fault_of
            if fault := fault_of(rule):
                raise RuleError(f"{fault}.")
            _check_exact(rule)
        if rule.passes:
            with importing:
                from thalweg._engines.check_passes import check_passes
            check_passes(rule, first)
            seen = dict.fromkeys(rule.seen, _FIRST_STEP)
            first, known = {**first, **seen}, {**known, **seen}
        _check_measures(rule, rule.measures, first)
        for level in rule.levels:
            _check_measures(rule, level.measures, known)
        for part in FORMULAS:
            formula = getattr(rule, part)
            if formula is not None:
                _check_formula(rule, part, formula, known)
    except RuleError as error:
        raise RuleError(f"Rule {rule.name!r}: {error}") from error.__cause__


def _check_exact(rule: Rule) -> None:
    # `state_storage` may name a codec nevertheless: what it makes of a rule does not come here.
    for slot in rule.slots:
        if slot.exact and slot.storage is not None:
            raise RuleError(
                f"slot {slot.name!r} has storage={slot.storage!r}, and exact=True, which says that"
                " 8 bits are too few for it: leave out one of them."
            )


def _check_measures(rule: Rule, measures: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    slots = [*rule.made, *(slot.name for slot in rule.element_slots)]
    for measure in measures.values():
        transcript = transcribe(measure)
        check_sides(slots, measure, transcript, 2, known)
        check_order(slots, measure, transcript, True)
        check_given(place_of(measure), transcript.scalars, known, rule)


def _first_scalars(rule: Rule, given: Mapping[str, Any]) -> dict[str, Any]:
    """What measures and passes may ask for at the first step, as float32."""
    own = {hyper.name: hyper.default for hyper in rule.hypers}
    own |= {name: value for name, value in given.items() if name not in own or _is_number(value)}
    known: dict[str, Any] = {
        name: np.float32(value) if _is_number(value) else _FIRST_STEP for name, value in own.items()
    }
    for power, hyper in rule.powers.items():
        known[power] = scalars.power(known[hyper], _FIRST_STEP)
    known.setdefault("t", _FIRST_STEP)
    before = {slot.name: np.float32(slot.initial) for slot in (*rule.numbers, *rule.common_slots)}
    known |= before
    if rule.prepare is not None:
        known |= _call_on_host(rule, rule.prepare, "prepare", known)
    return known


def _made_of_measures(rule: Rule, known: Mapping[str, Any]) -> dict[str, Any]:
    """What `update` may ask for besides.

    There are two variables here: an array over one would pass for a number.
    """
    found: dict[str, Any] = {}
    if rule.per_optimizer is not None:
        beside = {**known, **dict.fromkeys(rule.measures, np.float64(1))}
        found |= _call_on_host(rule, rule.per_optimizer, "per_optimizer", beside)
    slots = {s.name: np.full(2, s.initial, np.float32) for s in rule.measured_slots}
    for level in rule.all_levels:
        given = {**known, **found, **dict.fromkeys(level.measures, np.ones(2)), **slots}
        made = _call_on_host(rule, level.per_variable, "per_variable", given)
        # Slots are written, and no scalars of `update`.
        own = {name: value for name, value in made.items() if name not in slots}
        found |= {name: np.float32(np.ravel(value)[0]) for name, value in own.items()}
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, Real)


def _call_on_host(rule: Rule, function: Any, role: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """What a host's function of the rule makes of what is known."""
    where = place_of(function)
    if not where.startswith(role):
        where = f"{role}, {where},"
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise RuleError(f"{where} has no signature: {error}") from error
    needed = [each.name for each in parameters if each.default is each.empty]
    check_given(where, needed, known, rule)
    given = {each.name: known[each.name] for each in parameters if each.name in known}
    try:
        with np.errstate(all="ignore"):
            made = function(**given)
    except Exception as error:
        hint = _OVER_VARIABLES if role == "per_variable" else ""
        raise RuleError(
            f"{where} fails at the first step{hint}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, dict):
        raise RuleError(f"{where} must return a dict of scalars by name, not {show_value(made)}.")
    return cast("dict[str, Any]", made)


def _check_formula(rule: Rule, part: str, formula: Any, known: Mapping[str, Any]) -> None:
    transcript = transcribe(formula)
    grad = part not in ("before", "update_untouched")
    slots = [] if part == "before" else [slot.name for slot in rule.element_slots]
    taken = [*rule.made, *slots] if grad else slots
    check_sides(taken, formula, transcript, 1 + grad, known)
    if rule.made and grad:
        check_taken(formula, transcript, taken, 1 + len(slots), "var, *slots")
    else:
        check_counts(formula, transcript, grad, len(slots))
    check_order(taken, formula, transcript, grad)
    _check_results(slots, formula)
    check_numbers(rule, formula, transcript, known)


def _check_results(slots: list[str], formula: Any) -> None:
    """Raise if results have changed places: `return var, v, m` for slots m and v.

    A single slot may get the value of another one, as where it keeps the previous value.
    """
    # The results of a composed formula begin with those of its first formula, in their order.
    while isinstance(formula, ComposedFormula):
        formula = formula.both[0]
    if not isinstance(formula, types.FunctionType):
        return
    wanted = ["var", *slots]
    given = [_bare_name(result) for result in read_source(formula).results]
    comes_from = {
        name: other
        for name, other in zip(wanted, given, strict=False)
        if other in wanted and other != name
    }
    for name in comes_from:
        seen, other = {name}, comes_from[name]
        while other in comes_from and other not in seen:
            seen.add(other)
            other = comes_from[other]
        if other == name:
            shown = [each or "..." for each in given]
            raise RuleError(
                f"{place_of(formula)} returns {', '.join(shown)}, in another order than the rule's"
                f" slots: {', '.join(wanted)}."
            )


def _bare_name(result: ast.expr) -> str | None:
    """The name that a result is, if it is no more than that."""
    return result.id.removeprefix(LOCAL_PREFIX) if isinstance(result, ast.Name) else None

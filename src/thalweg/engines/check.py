"""Check a whole rule before its first step: its formulas, what they take, what `prepare` makes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from numbers import Real
from typing import Any, cast

import numpy as np
import torch

from thalweg.engines.given import check_given
from thalweg.engines.transcribe import (
    LOCAL_PREFIX,
    Transcript,
    check_counts,
    count_of,
    place_of,
    transcribe,
)
from thalweg.errors import RuleError
from thalweg.formula import FORMULAS, Rule
from thalweg.ground import scalars

_FIRST_STEP = np.float32(1)


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
        known = _first_scalars(rule, hypers or {})
        for measure in rule.measures.values():
            slots = [*rule.made, *(slot.name for slot in rule.element_slots)]
            _check_order(slots, measure, transcribe(measure), True)
            check_given(place_of(measure), transcribe(measure).scalars, known, rule)
        if rule.passes:
            _check_passes(rule, known)
        for part in FORMULAS:
            formula = getattr(rule, part)
            if formula is not None:
                _check_formula(rule, part, formula, known)
    except RuleError as error:
        raise RuleError(f"Rule {rule.name!r}: {error}") from error.__cause__


def _first_scalars(rule: Rule, given: Mapping[str, Any]) -> dict[str, Any]:
    """What formulas may ask for at the first step, as float32."""
    own = {hyper.name: hyper.default for hyper in rule.hypers}
    own |= {name: value for name, value in given.items() if name not in own or _is_number(value)}
    known: dict[str, Any] = {
        name: np.float32(value) if _is_number(value) else _FIRST_STEP for name, value in own.items()
    }
    for power, hyper in rule.powers.items():
        known[power] = scalars.power(known[hyper], _FIRST_STEP)
    known.setdefault("t", _FIRST_STEP)
    if rule.per_variable is None:
        known |= {slot.name: np.float32(slot.initial) for slot in rule.scalar_slots}
    if rule.prepare is not None:
        known |= _call_on_host(rule, rule.prepare, "prepare", known)
    if rule.per_variable is not None:
        one = np.ones(1, np.float32)
        beside = dict.fromkeys(rule.measures, np.ones(1)) | {
            slot.name: one * np.float32(slot.initial) for slot in rule.scalar_slots
        }
        made = _call_on_host(rule, rule.per_variable, "per_variable", {**known, **beside})
        known |= {name: np.float32(np.ravel(value)[0]) for name, value in made.items()}
    return known


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
        raise RuleError(
            f"{where} fails at the first step: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, dict):
        raise RuleError(f"{where} must return a dict of scalars by name, not {made!r}.")
    return cast("dict[str, Any]", made)


def _check_formula(rule: Rule, part: str, formula: Any, known: Mapping[str, Any]) -> None:
    transcript = transcribe(formula)
    grad = part not in ("before", "update_untouched")
    slots = [] if part == "before" else [slot.name for slot in rule.element_slots]
    taken = [*rule.made, *slots] if grad else slots
    _check_sides(taken, formula, transcript, 1 + grad, known)
    if rule.made and grad:
        _check_taken(formula, transcript, taken, 1 + len(slots), "var, *slots")
    else:
        check_counts(formula, transcript, grad, len(slots))
    _check_order(taken, formula, transcript, grad)
    _check_results(slots, formula, transcript)
    _check_numbers(rule, formula, transcript, known)


def _check_passes(rule: Rule, known: Mapping[str, Any]) -> None:
    """Refuse passes that take or make other values than they say, and stages that ask for more."""
    from thalweg.engines.staged import names_of

    made: list[str] = []
    for each in rule.passes:
        if hasattr(each, "makes"):
            transcript = transcribe(each.function)
            taken = [*made, *(slot.name for slot in rule.element_slots)]
            _check_sides(taken, each.function, transcript, 2, known)
            count, names = len(each.makes), ", ".join(each.makes)
            _check_taken(each.function, transcript, taken, count, names)
            _check_order(taken, each.function, transcript, True)
            _check_numbers(rule, each.function, transcript, known)
            made += each.makes
        else:
            names = names_of(each)
            there = {**known, **dict.fromkeys([*made, *(x.name for x in rule.shaped_slots)])}
            check_given(place_of(each.function), names, there, rule)
            _try_stage(rule, each, made, known)


def _try_stage(rule: Rule, stage: Any, made: list[str], known: Mapping[str, Any]) -> None:
    """Refuse a stage that fails over two small matrices, or returns what it may not."""
    from thalweg.engines.staged import Batch, check_found, names_of

    dice = torch.Generator().manual_seed(0)
    for shape in ((3, 2), (2, 3)):
        matrices = {name: torch.rand(2, *shape, generator=dice) for name in made}
        given: dict[str, Any] = dict(matrices)
        for slot in rule.shaped_slots:
            given[slot.name] = torch.full((2, *slot.shape(*shape)), slot.initial)  # pyright: ignore
        given = {
            name: given[name] if name in given else float(known[name]) for name in names_of(stage)
        }
        try:
            found = stage.function(**given)
        except Exception as error:
            raise RuleError(
                f"{place_of(stage.function)} fails over matrices of shape {shape}:"
                f" {type(error).__name__}: {error}"
            ) from error
        check_found(rule, stage, found, Batch([0, 1], shape, dict(matrices)), given, 2)


def _check_taken(
    formula: Any, transcript: Transcript, taken: list[str], results: int, returned: str
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


def _check_numbers(
    rule: Rule, formula: Any, transcript: Transcript, known: Mapping[str, Any]
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


def _check_sides(
    slots: list[str], formula: Any, transcript: Transcript, first: int, known: Mapping[str, Any]
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


def _check_order(slots: list[str], formula: Any, transcript: Transcript, grad: bool) -> None:
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


def _check_results(slots: list[str], formula: Any, transcript: Transcript) -> None:
    """Refuse results of which some have changed places: `return var, v, m` for slots m and v.

    A slot alone may get what another one was before, as where an old value is kept.
    """
    wanted = ["var", *slots]
    given = [_bare_name(result) for result in transcript.results]
    comes_from = {
        name: other
        for name, other in zip(wanted, given, strict=True)
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


def _signature_of(formula: Any, transcript: Transcript, early: list[str], late: list[str]) -> str:
    before = [name for name in transcript.positional if name not in early] + late
    after = early + [name for name in transcript.scalars if name not in late]
    return f"`def {formula.__name__}({', '.join([*before, *(['*'] if after else []), *after])})`"

"""Validation of a rule before its first step: formulas, their inputs, `prepare`."""

from __future__ import annotations

import ast
import types
from collections.abc import Mapping
from numbers import Real
from typing import Any, cast

import numpy as np

from thalweg._base import scalars
from thalweg._base.composed_formula import ComposedFormula
from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg._engines.check_formula import (
    check_numbers,
    check_order,
    check_sides,
    check_value_counts,
)
from thalweg._engines.formula_arguments import check_given, read_parameter_names
from thalweg._engines.formula_parser import check_counts, read_source, trace_formula
from thalweg._engines.formula_source import LOCAL_PREFIX, place_of
from thalweg.errors import RuleError
from thalweg.formula import FORMULAS, Rule

_FIRST_STEP = np.float32(1)
_OVER_VARIABLES = (
    ", where it is given arrays over the variables: write where(...), maximum(...) and sqrt(...),"
    " from thalweg import where, maximum, sqrt"
)


def check_rule(rule: Rule, hyperparameters: Mapping[str, Any] | None = None) -> None:
    """Raise an error unless a rule can take a step, without compiling or writing anything.

    The rule's `prepare` is called once, with the scalars of the first step. Each stage is called
    with small matrices.

    Args:
        hyperparameters: {name: value}. The rule's defaults replace missing hyperparameters,
            schedules and callables.

    Raises:
        RuleError: A formula is not straight arithmetic, has parameters or results that do not match
            the slots, or takes an unknown scalar. Or `prepare` fails, or returns no dict of
            numbers. The message has the rule's name, the file and the line.
    """
    try:
        first = _compute_first_scalars(rule, hyperparameters or {})
        available_scalars = {**first, **_call_measure_functions(rule, first)}
        if any(slot.storage is not None for slot in rule.slots):
            with importing:
                from thalweg._engines.codecs.rules import find_storage_fault
            if fault := find_storage_fault(rule):
                raise RuleError(f"{fault}.")
            _check_exact(rule)
        if rule.passes:
            with importing:
                from thalweg._engines.check_passes import check_passes
            check_passes(rule, first)
            seen_scalars = dict.fromkeys(rule.seen, _FIRST_STEP)
            first, available_scalars = (
                {**first, **seen_scalars},
                {**available_scalars, **seen_scalars},
            )
        _check_measures(rule, rule.measures, first)
        for level in rule.levels:
            _check_measures(rule, level.measures, available_scalars)
        for role in FORMULAS:
            formula = getattr(rule, role)
            if formula is not None:
                _check_formula(rule, role, formula, available_scalars)
    # The message contains the text of the caught error, which is not shown again.
    except RuleError as error:
        raise RuleError(f"Rule {rule.name!r}: {error}") from error.__cause__


def _check_exact(rule: Rule) -> None:
    """Raise a RuleError if a slot has a storage codec and `exact=True`."""
    # The option `state_storage` can still encode such a slot: its rules are not checked here.
    for slot in rule.slots:
        if slot.exact and slot.storage is not None:
            raise RuleError(
                f"slot {slot.name!r} has storage={slot.storage!r}, and exact=True, which says that"
                " 8 bits are too few for it: leave out one of them."
            )


def _check_measures(
    rule: Rule, measures: Mapping[str, Any], available_scalars: Mapping[str, Any]
) -> None:
    """Raise RuleError unless measures read the rule's slots, in order, and known scalars."""
    slots = [*rule.made, *(slot.name for slot in rule.element_slots)]
    for measure in measures.values():
        formula_graph = trace_formula(measure)
        check_sides(slots, measure, 2, available_scalars)
        check_order(slots, measure, True)
        check_given(place_of(measure), formula_graph.scalars, available_scalars, rule)


def _compute_first_scalars(rule: Rule, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return {name: float32 scalar} that measures and passes can read at the first step."""
    hyperparameters: dict[str, Any] = {hyper.name: hyper.default for hyper in rule.hypers}
    for name, value in overrides.items():
        if name not in hyperparameters or isinstance(value, Real):
            hyperparameters[name] = value
    available_scalars: dict[str, Any] = {
        name: np.float32(value) if isinstance(value, Real) else _FIRST_STEP
        for name, value in hyperparameters.items()
    }
    for power, hyper in rule.powers.items():
        available_scalars[power] = scalars.power(available_scalars[hyper], _FIRST_STEP)
    available_scalars.setdefault("t", _FIRST_STEP)
    for slot in (*rule.numbers, *rule.common_slots):
        available_scalars[slot.name] = np.float32(slot.initial)
    if rule.prepare is not None:
        available_scalars |= _call_on_host(rule, rule.prepare, "prepare", available_scalars)
    return available_scalars


def _call_measure_functions(rule: Rule, available_scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Call `per_optimizer` and `per_variable` with all measures 1; return {name: new scalar}.

    `per_variable` gets arrays over two variables, because arrays over one variable hide errors. The
    first variable's results are returned, as float32.
    """
    measured_scalars: dict[str, Any] = {}
    if rule.per_optimizer is not None:
        optimizer_args = {**available_scalars, **dict.fromkeys(rule.measures, np.float64(1))}
        measured_scalars |= _call_on_host(rule, rule.per_optimizer, "per_optimizer", optimizer_args)
    slots = {s.name: np.full(2, s.initial, np.float32) for s in rule.measured_slots}
    for level in rule.all_levels:
        sums = dict.fromkeys(level.measures, np.ones(2))
        variable_args = {**available_scalars, **measured_scalars, **sums, **slots}
        outputs = _call_on_host(rule, level.per_variable, "per_variable", variable_args)
        # Values of slots are not scalars of `update`.
        new_scalars = {name: value for name, value in outputs.items() if name not in slots}
        measured_scalars |= {
            name: np.float32(np.ravel(value)[0]) for name, value in new_scalars.items()
        }
    return measured_scalars


def _call_on_host(
    rule: Rule, function: Any, role: str, available_scalars: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the dict that a host function of the rule returns; raise RuleError if it fails.

    Args:
        function: Called with the entries of `available_scalars` that are its parameters.
        role: The function's name in the rule, for errors.
    """
    label = place_of(function)
    if not label.startswith(role):
        label = f"{role}, {label},"
    try:
        required, optional = read_parameter_names(function)
    except (TypeError, ValueError) as error:
        raise RuleError(f"{label} has no signature: {error}") from error
    check_given(label, required, available_scalars, rule)
    names = [name for name in (*required, *optional) if name in available_scalars]
    arguments = {name: available_scalars[name] for name in names}
    try:
        with np.errstate(all="ignore"):
            outputs = function(**arguments)
    except Exception as error:
        advice = _OVER_VARIABLES if role == "per_variable" else ""
        raise RuleError(
            f"{label} fails at the first step{advice}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(outputs, dict):
        raise RuleError(
            f"{label} must return a dict of scalars by name, not {show_value(outputs)}."
        )
    return cast("dict[str, Any]", outputs)


def _check_formula(
    rule: Rule, role: str, formula: Any, available_scalars: Mapping[str, Any]
) -> None:
    """Raise RuleError unless a formula takes and returns the values that its role requires.

    Args:
        role: "update", "before", or another name of `FORMULAS`.
    """
    has_gradient = role not in ("before", "update_untouched")
    slots = [] if role == "before" else [slot.name for slot in rule.element_slots]
    input_names = [*rule.made, *slots] if has_gradient else slots
    check_sides(input_names, formula, 1 + has_gradient, available_scalars)
    if rule.made and has_gradient:
        check_value_counts(formula, input_names, 1 + len(slots), "var, *slots")
    else:
        check_counts(formula, has_gradient, len(slots))
    check_order(input_names, formula, has_gradient)
    _check_results(slots, formula)
    check_numbers(rule, formula, available_scalars)


def _check_results(slots: list[str], formula: Any) -> None:
    """Raise RuleError if results are permuted: `return var, v, m` for slots m and v.

    A formula may return one slot's value for two slots, for example to store a previous value.
    """
    # The results of a composed formula begin with those of its first formula, in their order.
    while isinstance(formula, ComposedFormula):
        formula = formula.both[0]
    if not isinstance(formula, types.FunctionType):
        return
    expected_names = ["var", *slots]
    result_names = [_bare_name(result) for result in read_source(formula).results]
    sources = {
        name: source
        for name, source in zip(expected_names, result_names, strict=False)
        if source in expected_names and source != name
    }
    # Names remain if the values of names are exchanged in a circle.
    for _ in expected_names:
        sources = {name: source for name, source in sources.items() if source in sources}
    if sources:
        displayed = [name or "..." for name in result_names]
        raise RuleError(
            f"{place_of(formula)} returns {', '.join(displayed)}, in another order than the"
            f" rule's slots: {', '.join(expected_names)}."
        )


def _bare_name(result: ast.expr) -> str | None:
    """Return the name that a result consists of; None for another expression."""
    return result.id.removeprefix(LOCAL_PREFIX) if isinstance(result, ast.Name) else None

"""Bind the scalars that functions of a rule take as parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from thalweg._base.showing import show_value
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.protocol import Scalars
from thalweg.errors import RuleError
from thalweg.formula import FORMULAS, Formula, Rule


def read_parameter_names(function: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return names of a function's parameters: a tuple without, and a tuple with a default."""
    parameters = inspect.signature(function).parameters.values()
    required = tuple(param.name for param in parameters if param.default is param.empty)
    return required, tuple(param.name for param in parameters if param.default is not param.empty)


@lru_cache(1024)
def parameter_names(formula: Formula) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the result of `read_parameter_names` for a hashable function; cached."""
    return read_parameter_names(formula)


def bind_arguments(
    rule: Rule, role: str, scalars: Scalars, function: Formula | None = None
) -> dict[str, Any]:
    """Return {name: scalar} for the parameters of a function of a rule.

    Args:
        role: The name of the rule's attribute that holds the function.
        function: Optional. The function, if the rule has several with this role.

    Raises:
        RuleError: A parameter without a default has no scalar.
    """
    required, optional = parameter_names(function or getattr(rule, role))
    try:
        arguments = {name: scalars[name] for name in required}
    except KeyError:
        check_given(f"{role} of rule {rule.name!r}", required, scalars, rule)
        raise
    return arguments | {name: scalars[name] for name in optional if name in scalars}


def apply_prepare(rule: Rule, hyperparameters: Scalars) -> dict[str, Any]:
    """Return hyperparameters together with the scalars that the rule's `prepare` computes.

    Args:
        rule: The rule. Without `prepare` a copy of `hyperparameters` is returned.
        hyperparameters: Hyperparameters by name, in a compute dtype.

    Raises:
        RuleError: `prepare` takes an unknown scalar, or does not return a dict.
    """
    if rule.prepare is None:
        return dict(hyperparameters)
    arguments = bind_arguments(rule, "prepare", hyperparameters)
    with np.errstate(all="ignore"):
        prepared = rule.prepare(**arguments)
    if not isinstance(prepared, dict):
        raise RuleError(
            f"prepare of rule {rule.name!r} must return a dict, not {show_value(prepared)}."
        )
    return {**hyperparameters, **prepared}


def check_scalars(rule: Rule, scalars: Scalars) -> None:
    """Raise RuleError, with names, if a formula of a rule takes an unknown scalar."""
    for role in FORMULAS:
        formula = getattr(rule, role)
        if formula is not None:
            names = [name for name in trace_formula(formula).scalars if name not in rule.seen]
            check_given(f"{role} of rule {rule.name!r}", names, scalars, rule)


def check_given(label: str, names: Iterable[str], scalars: Scalars, rule: Rule) -> None:
    """Raise RuleError if a name of `names` is not a key of `scalars`.

    `names` are the scalar arguments of a function of the rule; `label` names the function in the
    error.
    """
    missing = [name for name in names if name not in scalars]
    if missing:
        source = ", and not made by prepare" if rule.prepare is not None else ""
        raise RuleError(
            f"{label} asks for {', '.join(missing)}, which is neither a hyperparameter nor a power"
            f" of one{source}. There are {', '.join(scalars)}."
        )

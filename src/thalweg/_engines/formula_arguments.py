"""What the functions of a rule are given: the scalars that their parameters ask for."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from thalweg._base.showing import show_value
from thalweg._engines.formula_parser import transcribe
from thalweg._engines.protocol import Scalars
from thalweg.errors import RuleError
from thalweg.formula import FORMULAS, Formula, Rule


@cache
def _parameter_names(formula: Formula) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a formula's parameters, those without a default and those with one."""
    found = inspect.signature(formula).parameters.values()
    needed = tuple(each.name for each in found if each.default is each.empty)
    return needed, tuple(each.name for each in found if each.default is not each.empty)


def bind_arguments(
    rule: Rule, role: str, known: Scalars, function: Formula | None = None
) -> dict[str, Any]:
    """The arguments of the rule's function of this role, out of what is known.

    Args:
        rule, role: The rule, and what the function is in it.
        known: What is known.
        function: The function, if there are several of the role.

    Raises:
        RuleError: It asks for what there is not.
    """
    needed, optional = _parameter_names(function or getattr(rule, role))
    try:
        arguments = {name: known[name] for name in needed}
    except KeyError:
        check_given(f"{role} of rule {rule.name!r}", needed, known, rule)
        raise
    return arguments | {name: known[name] for name in optional if name in known}


def apply_prepare(rule: Rule, hypers: Scalars) -> dict[str, Any]:
    """The hypers (scalars of a compute dtype) and what the rule's `prepare` makes of them.

    Raises:
        RuleError: `prepare` asks for what there is not, or returns no dict.
    """
    if rule.prepare is None:
        return dict(hypers)
    arguments = bind_arguments(rule, "prepare", hypers)
    with np.errstate(all="ignore"):
        made = rule.prepare(**arguments)
    if not isinstance(made, dict):
        raise RuleError(
            f"prepare of rule {rule.name!r} must return a dict, not {show_value(made)}."
        )
    return {**hypers, **made}


def check_scalars(rule: Rule, scalars: Scalars) -> None:
    """Refuse a rule whose formulas ask for scalars that nobody gives.

    Raises:
        RuleError: Names the formula and the scalars.
    """
    for role in FORMULAS:
        formula = getattr(rule, role)
        if formula is not None:
            wanted = [name for name in transcribe(formula).scalars if name not in rule.seen]
            check_given(f"{role} of rule {rule.name!r}", wanted, scalars, rule)


def check_given(where: str, wanted: Iterable[str], given: Scalars, rule: Rule) -> None:
    """Refuse a function of a rule that asks for scalars that nobody gives.

    Args:
        where: Names the function in the message.
        wanted: The scalars it asks for.
        given: Those there are.
        rule: The rule.

    Raises:
        RuleError: Names the function and the scalars.
    """
    missing = [name for name in wanted if name not in given]
    if missing:
        made = ", and not made by prepare" if rule.prepare is not None else ""
        raise RuleError(
            f"{where} asks for {', '.join(missing)}, which is neither a hyperparameter nor a power"
            f" of one{made}. There are {', '.join(given)}."
        )

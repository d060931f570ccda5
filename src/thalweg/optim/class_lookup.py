"""Optimizer classes of this package by name."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError, InvalidTypeError, did_you_mean
from thalweg.formula import Rule
from thalweg.optim.rule_names import HOMES, KINDS


def kind_of(rule: object) -> Any:
    """Return the optimizer class of this package for the `rule` of a group.

    Args:
        rule: The class, its name, or a user-defined `Rule`. The first call creates a class for a
            `Rule`; later calls return this class.

    Raises:
        InvalidTypeError: `rule` has another type, or is a class of another package.
        RuleError: The user-defined rule cannot take a step.
        InvalidArgumentError: No class has the name `rule`.
    """
    if isinstance(rule, Rule):
        with importing:
            from thalweg.optim.user_rules import class_of
        return class_of(rule)
    if not isinstance(rule, str):
        name: Any = getattr(rule, "__name__", None)
        # A class of another package may have the name of one of these.
        if not isinstance(rule, type) or name not in KINDS or class_named(name) is not rule:
            raise InvalidTypeError(
                "rule must be a class of thalweg.optim or its name, or a thalweg.Rule, not"
                f" {show_value(rule)}."
            )
        return rule
    if rule not in KINDS:
        suggestion = did_you_mean(rule, KINDS) or f"Known are {', '.join(KINDS)}."
        raise InvalidArgumentError(
            f"rule is {show_value(rule)}, which is not a class of thalweg.optim. {suggestion}"
        )
    return class_named(rule)


@cache
def class_named(name: str) -> Any:
    """Return the class of this package with the name `name`."""
    module = importlib.import_module(f"thalweg.optim.{HOMES.get(name, 'classes')}")
    return getattr(module, name)

"""The classes of this package by name."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from thalweg.errors import InvalidArgumentError, InvalidTypeError, did_you_mean
from thalweg.optim.kinds import HOMES, KINDS


def kind_of(rule: object) -> Any:
    """The class of this package that a rule is called by, in a group.

    Args:
        rule: The class, or its name.

    Raises:
        InvalidTypeError: It is neither.
        InvalidArgumentError: There is no such class.
    """
    if not isinstance(rule, str):
        name: Any = getattr(rule, "__name__", None)
        if not isinstance(rule, type) or name not in KINDS or class_named(name) is not rule:
            raise InvalidTypeError(
                f"rule must be a class of thalweg.optim or its name, not {rule!r}."
            )
        return rule
    if rule not in KINDS:
        near = did_you_mean(rule, KINDS) or f"Known are {', '.join(KINDS)}."
        raise InvalidArgumentError(f"rule is {rule!r}, no class of thalweg.optim. {near}")
    return class_named(rule)


@cache
def class_named(name: str) -> Any:
    """A class of this package."""
    module = importlib.import_module(f"thalweg.optim.{HOMES.get(name, 'classes')}")
    return getattr(module, name)

"""The classes of this package by name, each of which says how groups of parameters are updated."""

from __future__ import annotations

import importlib
from typing import Any

from thalweg.errors import InvalidArgumentError, InvalidTypeError, did_you_mean

_OF_TORCH = (
    "ASGD", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop",
    "Rprop", "SparseAdam",
)  # fmt: skip
_MODULES = {
    "lion": ("Lion",),
    "modern.adamw": (
        "AdamWCoupled", "AdamWDecoupled", "AdamWIndependent", "AdamWCautiousDecay", "NAdamW",
        "CautiousAdamW", "StableAdamW",
    ),
    "modern.further": ("LaProp", "AdEMAMix", "ADOPT", "Adan", "LAMB", "AdamH"),
    "modern.schedule_free": ("ScheduleFreeAdamW", "ScheduleFreeSGD"),
}  # fmt: skip
# The modules of those that are imported when they are asked for.
HOMES = {name: module for module, names in _MODULES.items() for name in names}
KINDS = (*_OF_TORCH, *HOMES)


def kind_of(rule: Any) -> Any:
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


def class_named(name: str) -> Any:
    """A class of this package."""
    module = importlib.import_module(f"thalweg.optim.{HOMES.get(name, 'classes')}")
    return getattr(module, name)

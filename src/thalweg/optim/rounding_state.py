"""Entries of state dicts about random bits: written when saved, compared when loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg._base.showing import show_value
from thalweg._core.options.stochastic_rounding import Rounding
from thalweg._core.param_groups import Group
from thalweg._core.state import mismatch

NAMES = tuple(each.name for each in Rounding.keywords())


def record_rounding(optimizer: Any, groups: Sequence[Group]) -> None:
    """Have the groups of a state of an optimizer say how numbers are rounded, and the seed."""
    own = optimizer._around.of(Rounding)
    if own.round is not None:
        for told in groups:
            told.update({name: getattr(own, name) for name in NAMES})


def fit_rounding(optimizer: Any, given: dict[str, Any], convert: bool) -> dict[str, Any]:
    """Return a state whose groups say nothing of that.

    Args:
        optimizer: The optimizer.
        given: The state, of the right form. One that tells nothing is of a training that goes on
            with the optimizer's random bits.
        convert: Whether one goes on with those also where it tells of others, or is refused.

    Raises:
        CheckpointMismatchError: It is refused; names both values.
    """
    own = {name: getattr(optimizer._around.of(Rounding), name) for name in NAMES}
    found = [
        f"'{name}' of group {place} is {show_value(group[name])}, here {own[name]!r};"
        " convert=True goes on with what is here"
        for place, group in enumerate(given["param_groups"])
        for name in optimizer._around.others(group)
        if name in own
    ]
    if found and not convert:
        raise mismatch(found, type(optimizer).__name__)
    groups = [{k: x for k, x in each.items() if k not in own} for each in given["param_groups"]]
    return {**given, "param_groups": groups}

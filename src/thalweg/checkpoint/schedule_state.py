"""State of learning rates: the positions of their random numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from thalweg._core.described import Described, is_argument
from thalweg._core.state import Loading, differences, mismatch
from thalweg.schedules import LearningRateSchedule


def states_of(optimizer: object) -> dict[str, dict[str, Any]]:
    """Return the states of an optimizer's learning rates, by the arguments that they are."""
    return {name: each.state_dict() for name, each in _rates_by_path(optimizer).items()}


def prepare_rates(optimizer: object, given: Mapping[str, object], check: bool) -> Loading:
    """Return the loading that sets an optimizer's learning rates to their states.

    Args:
        optimizer: The optimizer.
        given: The states from `states_of`.
        check: Whether there must be a state for each and none for others.

    Raises:
        CheckpointMismatchError: A state is missing, or belongs to no rate.
    """
    keepers = _rates_by_path(optimizer)
    found = differences([], {name: None for name in given if name not in keepers})
    found += [f"the random numbers of {name} are missing" for name in keepers if name not in given]
    if found and check:
        raise mismatch(found, "The learning rates")
    calls: list[Callable[[], Any]] = []
    for name in keepers.keys() & given.keys():
        twin = copy.deepcopy(keepers[name])
        twin.load_state_dict(given[name])
        own: dict[str, Any] = keepers[name].__dict__
        calls.append(partial(own.update, twin.__dict__))
    return Loading(then=calls)


def _rates_by_path(optimizer: Any, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in optimizer._arguments().items():
        if isinstance(value, Described):
            found |= _rates_by_path(value, f"{path}{name}.")
        elif is_argument(value):
            keeps = enumerate(cast(Any, value)._keeps())
            found |= {f"{path}{name}#{place}": each for place, each in keeps}
        elif isinstance(value, LearningRateSchedule) and hasattr(value, "load_state_dict"):
            found[path + name] = value
    return found

"""State of learning rates: positions in their random numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from thalweg._core.config_registry import Configurable, is_argument
from thalweg._core.state import Loading, differences, mismatch
from thalweg.schedules import LearningRateSchedule


def states_of(optimizer: object) -> dict[str, dict[str, Any]]:
    """Return {path of an argument: state dict} of the learning-rate schedules that have a state.

    A path is such as "learning_rate" or, in a wrapped optimizer, "inner.learning_rate".
    """
    return {name: rate.state_dict() for name, rate in _rates_by_path(optimizer).items()}


def prepare_rates(optimizer: object, states: Mapping[str, object], must_match: bool) -> Loading:
    """Return the loading that sets the states of an optimizer's schedules; nothing is set yet.

    Args:
        optimizer: The optimizer.
        states: The states from `states_of`.
        must_match: False to ignore missing and superfluous states.

    Raises:
        CheckpointMismatchError: A state is missing, or belongs to no schedule, with `must_match`.
    """
    rates = _rates_by_path(optimizer)
    problems = differences([], {name: None for name in states if name not in rates})
    missing = [name for name in rates if name not in states]
    problems += [f"the random numbers of {name} are missing" for name in missing]
    if problems and must_match:
        raise mismatch(problems, "The learning rates")
    calls: list[Callable[[], Any]] = []
    for name in rates.keys() & states.keys():
        rate_copy = copy.deepcopy(rates[name])
        rate_copy.load_state_dict(states[name])
        attributes: dict[str, Any] = rates[name].__dict__
        calls.append(partial(attributes.update, rate_copy.__dict__))
    return Loading(then=calls)


def _rates_by_path(optimizer: Any, prefix: str = "") -> dict[str, Any]:
    """Return {path of an argument: learning-rate schedule} of the schedules that have a state.

    Those of wrapped optimizers are included, with `prefix` and the argument's name in their paths.
    """
    rates: dict[str, Any] = {}
    for name, argument in optimizer._arguments().items():
        if isinstance(argument, Configurable):
            rates |= _rates_by_path(argument, f"{prefix}{name}.")
        elif is_argument(argument):
            inner_rates = enumerate(cast(Any, argument)._keeps())
            rates |= {f"{prefix}{name}#{index}": rate for index, rate in inner_rates}
        elif isinstance(argument, LearningRateSchedule) and hasattr(argument, "load_state_dict"):
            rates[prefix + name] = argument
    return rates

"""Aggregation modes of variables."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from thalweg._base.execution_context import is_symbolic
from thalweg._base.locks import importing
from thalweg._core.graph_mode import graph_mode
from thalweg.variable import VariableAggregation, VariableSynchronization

Params = ParamSpec("Params")
Mode = TypeVar("Mode", VariableAggregation, VariableSynchronization)


def aggregate_assignments(variable: Any, synchronization: Any, aggregation: Any) -> Any:
    """Set the modes of a variable in place and return it; later assignments are aggregated.

    Args:
        variable: A new variable, eager or of a graph.
        synchronization: `ON_READ` switches aggregation off: each replica assigns its local value.
        aggregation: `SUM` or `MEAN` over the replicas, or `ONLY_FIRST_REPLICA`, the value of rank
            0. With `NONE` or None, each replica assigns its local value.

    Raises:
        ValueError: A mode is invalid.
    """
    aggregation_mode = as_mode(VariableAggregation, aggregation)
    synchronization_mode = as_mode(VariableSynchronization, synchronization)
    if synchronization_mode is not VariableSynchronization.AUTO:
        variable.synchronization = synchronization_mode
    if aggregation_mode is VariableAggregation.NONE:
        return variable
    variable.aggregation = aggregation_mode
    if synchronization_mode is not VariableSynchronization.ON_READ:
        if is_symbolic(variable):
            graph_mode().aggregate(variable, aggregation_mode)
        else:
            with importing:
                from thalweg.distribute.variable import AggregatedVariable
            variable.__class__, variable._aggregation = AggregatedVariable, aggregation_mode
    return variable


def as_mode(mode_class: type[Mode], mode: object) -> Mode:
    """Return the enumeration member whose value is `mode`; None selects value 0.

    Raises:
        ValueError: No member has this value.
    """
    try:
        return mode_class(0 if mode is None else mode)
    except ValueError:
        word = mode_class.__name__.removeprefix("Variable").lower()
        mode_names = ", ".join(f"{mode_class.__name__}.{member.name}" for member in mode_class)
        raise ValueError(
            f"Invalid variable {word} mode: {mode!r}. It must be one of {mode_names}."
        ) from None


def with_aggregation(make: Callable[Params, object]) -> Callable[Params, Any]:
    """Wrap a constructor of variables. The wrapper calls `aggregate_assignments` on a new variable.

    The wrapper validates the keyword arguments `synchronization` and `aggregation`, and passes both
    to `make` as enumeration members.
    """

    @functools.wraps(make)
    def make_aggregated(*args: Params.args, **kwargs: Params.kwargs) -> object:
        synchronization = as_mode(VariableSynchronization, kwargs.pop("synchronization", None))
        aggregation = as_mode(VariableAggregation, kwargs.pop("aggregation", None))
        modes = {"synchronization": synchronization, "aggregation": aggregation}
        variable = make(*args, **{**kwargs, **modes})
        return aggregate_assignments(variable, synchronization, aggregation)

    return make_aggregated

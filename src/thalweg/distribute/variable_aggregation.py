"""Modes of variables that are equal on all replicas, and of the aggregation of their values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from thalweg._base.execution_context import is_symbolic
from thalweg._base.locks import importing
from thalweg._core.graph_mode import graph_mode
from thalweg.variable import VariableAggregation, VariableSynchronization

P = ParamSpec("P")
Mode = TypeVar("Mode", VariableAggregation, VariableSynchronization)


def aggregate_assignments(variable: Any, synchronization: Any, aggregation: Any) -> Any:
    """Return a variable that was just made, whose assignments in replicas are aggregated from now
    on.

    Args:
        variable: Of eager mode or of a graph.
        synchronization: `ON_READ` has each replica assign its own.
        aggregation: `SUM` or `MEAN` over the replicas, or `ONLY_FIRST_REPLICA`: that of rank 0.
            `NONE` or None has each replica assign its own.

    Raises:
        ValueError: One of them is no mode.
    """
    how = as_mode(VariableAggregation, aggregation)
    when = as_mode(VariableSynchronization, synchronization)
    if when is not VariableSynchronization.AUTO:
        variable.synchronization = when
    if how is VariableAggregation.NONE:
        return variable
    variable.aggregation = how
    if when is not VariableSynchronization.ON_READ:
        if is_symbolic(variable):
            graph_mode().aggregate(variable, how)
        else:
            with importing:
                from thalweg.distribute.variable import AggregatedVariable
            variable.__class__, variable._aggregation = AggregatedVariable, how
    return variable


def as_mode(kind: type[Mode], given: object) -> Mode:
    """Return the mode with a number; None is the first mode.

    Raises:
        ValueError: There is no such mode.
    """
    try:
        return kind(0 if given is None else given)
    except ValueError:
        word = kind.__name__.removeprefix("Variable").lower()
        known = ", ".join(f"{kind.__name__}.{each.name}" for each in kind)
        raise ValueError(
            f"Invalid variable {word} mode: {given!r}. It must be one of {known}."
        ) from None


def with_aggregation(make: Callable[P, object]) -> Callable[P, Any]:
    """Return a function that makes variables, with its `synchronization` and `aggregation`
    heeded.
    """

    @functools.wraps(make)
    def make_aggregated(*args: P.args, **kwargs: P.kwargs) -> object:
        synchronization = as_mode(VariableSynchronization, kwargs.pop("synchronization", None))
        aggregation = as_mode(VariableAggregation, kwargs.pop("aggregation", None))
        modes = {"synchronization": synchronization, "aggregation": aggregation}
        variable = make(*args, **{**kwargs, **modes})
        return aggregate_assignments(variable, synchronization, aggregation)

    return make_aggregated

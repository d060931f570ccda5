"""Variables whose assignments are the same on all replicas."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from thalweg.distribute.agreement import Said
from thalweg.distribute.context import in_cross_replica_context
from thalweg.distribute.message import Doing, tell
from thalweg.distribute.nested import reduced
from thalweg.distribute.strategy import Strategy, get_strategy
from thalweg.errors import InvalidTypeError
from thalweg.graph import GraphVariable, Output, by_reference, operation
from thalweg.graph.arguments import whole
from thalweg.switches import no_grad
from thalweg.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
    dtype_name,
)

P = ParamSpec("P")
Mode = TypeVar("Mode", VariableAggregation, VariableSynchronization)

_OPS = {VariableAggregation.SUM: "sum", VariableAggregation.MEAN: "mean"}


class AggregatedVariable(Variable):
    """A variable that `assign`, `assign_add` and `assign_sub` set alike on all replicas.

    In a replica of `Strategy.run` the values of all of them become one; each must make the call.
    Across replicas, and outside of a strategy, the value is assigned as it is. See `aggregated`.
    """

    _aggregation: VariableAggregation

    def _operand(self, value: Any, takes: Any = None) -> Tensor:
        strategy = _in_replicas()
        if strategy is None:
            return super()._operand(value, takes)
        return _of_all(strategy, self._aggregation, self, value)


class AggregatedGraphVariable(GraphVariable):
    """The same of a graph: what is built in a replica is aggregated when a session runs it."""

    _aggregation: VariableAggregation

    def _operand(self, value: Any) -> Any:
        own, strategy = super()._operand(value), _in_replicas()
        if strategy is None:
            return own
        made = operation(
            partial(_of_all, strategy, self._aggregation),
            [by_reference(self), whole(own)],
            "all_reduce",
            kind="pure",
            outputs=Output(self.dtype, self.shape, ()),
        )
        made.op.abandoned = partial(tell, strategy.ranks, Doing.VALUES)
        return made


def _in_replicas() -> Strategy | None:
    """The strategy of several replicas of which this thread is one."""
    strategy = get_strategy()
    return None if strategy.ranks.is_alone or in_cross_replica_context() else strategy


@no_grad()
def _of_all(
    strategy: Strategy, aggregation: VariableAggregation, variable: Variable, value: Any
) -> Tensor:
    """What the values that all replicas assign to a variable become; refused on all if on one."""
    own, trouble = variable, None
    try:
        own = Variable._operand(variable, value)
        is_whole = not (own.is_floating_point() or own.is_complex())
        if aggregation is VariableAggregation.MEAN and is_whole:
            raise InvalidTypeError(
                f"Cannot assign to '{variable.name}': it is {dtype_name(variable.dtype)}, which"
                " has no mean over replicas. Use VariableAggregation.SUM."
            )
    except Exception as error:
        trouble = error
    told = f"what is assigned to: '{variable.name}', {aggregation.name}"
    said, number = Said(lambda: [told]), aggregation.value
    strategy.assignments.check([variable], said, trouble, beside=number, doing=Doing.VALUES)
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        first = own.detach().clone(memory_format=torch.contiguous_format)
        strategy.ranks.spread([first])
        return first
    return reduced(strategy, _OPS[aggregation], own)


def aggregated(variable: Any, synchronization: Any, aggregation: Any) -> Any:
    """A variable that was just made, whose assignments in replicas are aggregated from now on.

    Args:
        variable: Of eager mode or of a graph.
        synchronization: `ON_READ` has each replica assign its own.
        aggregation: `SUM` or `MEAN` over the replicas, or `ONLY_FIRST_REPLICA`: that of rank 0.
            `NONE` or None has each replica assign its own.

    Raises:
        ValueError: One of them is no mode.
    """
    how = mode(VariableAggregation, aggregation)
    when = mode(VariableSynchronization, synchronization)
    if when is not VariableSynchronization.AUTO:
        variable.synchronization = when
    if how is VariableAggregation.NONE:
        return variable
    variable.aggregation = how
    if when is not VariableSynchronization.ON_READ:
        is_symbolic = isinstance(variable, GraphVariable)
        variable.__class__ = AggregatedGraphVariable if is_symbolic else AggregatedVariable
        variable._aggregation = how
    return variable


def mode(kind: type[Mode], given: Any) -> Mode:
    """One of the modes, or its number; None is the first of them.

    Raises:
        ValueError: It is none.
    """
    try:
        return kind(0 if given is None else given)
    except ValueError:
        word = kind.__name__.removeprefix("Variable").lower()
        known = ", ".join(f"{kind.__name__}.{each.name}" for each in kind)
        raise ValueError(
            f"Invalid variable {word} mode: {given!r}. It must be one of {known}."
        ) from None


def aggregating(make: Callable[P, Any]) -> Callable[P, Any]:
    """A function that makes variables, with its `synchronization` and `aggregation` heeded."""

    @functools.wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> Any:
        synchronization = mode(VariableSynchronization, kwargs.pop("synchronization", None))
        aggregation = mode(VariableAggregation, kwargs.pop("aggregation", None))
        modes = {"synchronization": synchronization, "aggregation": aggregation}
        variable = make(*args, **{**kwargs, **modes})
        return aggregated(variable, synchronization, aggregation)

    return made

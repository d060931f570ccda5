"""Variables whose assignments are the same on all replicas."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg.distribute.consistency_check import StepFingerprint
from thalweg.distribute.context import in_cross_replica_context
from thalweg.distribute.handshake import PendingCollective
from thalweg.distribute.nested_all_reduce import all_reduce
from thalweg.distribute.strategy import Strategy, get_strategy
from thalweg.errors import InvalidTypeError
from thalweg.variable import Variable, VariableAggregation, dtype_name

_OPS = {VariableAggregation.SUM: "sum", VariableAggregation.MEAN: "mean"}


class AggregatedVariable(Variable):
    """A variable that `assign`, `assign_add` and `assign_sub` set alike on all replicas.

    In a replica of `Strategy.run` the values of all of them become one; each must make the call.
    Across replicas, and outside of a strategy, the value is assigned as it is. See
    `modes.aggregate_assignments`.
    """

    _aggregation: VariableAggregation

    def _operand(self, value: Any, takes: Any = None) -> Tensor:
        strategy = in_replicas()
        if strategy is None:
            return super()._operand(value, takes)
        return of_all(strategy, self._aggregation, self, value)


def in_replicas() -> Strategy | None:
    """Return the strategy of several replicas of which this thread is one."""
    strategy = get_strategy()
    return None if strategy.ranks.is_alone or in_cross_replica_context() else strategy


@no_grad()
def of_all(
    strategy: Strategy, aggregation: VariableAggregation, variable: Variable, value: object
) -> Tensor:
    """Return the aggregate of the values that all replicas assign to a variable; raise on all if on
    one.
    """
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
    said, number = StepFingerprint(lambda: [told]), aggregation.value
    strategy.assignments.check(
        [variable], said, trouble, beside=number, doing=PendingCollective.VALUES
    )
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        first = own.detach().clone(memory_format=torch.contiguous_format)
        strategy.ranks.broadcast([first])
        return first
    return all_reduce(strategy, _OPS[aggregation], own)

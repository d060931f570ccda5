"""Variables with aggregated assignments."""

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
    """Variable with equal values on all replicas after `assign`, `assign_add` and `assign_sub`.

    In `Strategy.run`, the values of all replicas are aggregated; each replica must make the call.
    Outside of `run`, the value is assigned unchanged. See
    `variable_aggregation.aggregate_assignments`.
    """

    _aggregation: VariableAggregation

    def _operand(self, value: Any, takes: Any = None) -> Tensor:
        """Return the value to assign: the aggregate over all replicas inside `Strategy.run`."""
        strategy = in_replicas()
        if strategy is None:
            return super()._operand(value, takes)
        return of_all(strategy, self._aggregation, self, value)


def in_replicas() -> Strategy | None:
    """Return the strategy whose `run` this thread executes; None if there is one replica."""
    strategy = get_strategy()
    return None if strategy.ranks.is_alone or in_cross_replica_context() else strategy


@no_grad()
def of_all(
    strategy: Strategy, aggregation: VariableAggregation, variable: Variable, value: object
) -> Tensor:
    """Return the aggregate of all replicas' values, which the caller assigns to `variable`.

    All replicas must call this function for the same variable.

    Args:
        aggregation: SUM, MEAN, or ONLY_FIRST_REPLICA for the value of rank 0.
        value: The value of this replica.

    Raises:
        ReplicaMismatchError: Another replica has an invalid value, or another variable.
        TypeError, ValueError: `value` is invalid.
    """
    # An error is raised in `check`, which also reports it to the ranks that wait for this one.
    operand, trouble = variable, None
    try:
        operand = Variable._operand(variable, value)
        is_integral = not (operand.is_floating_point() or operand.is_complex())
        if aggregation is VariableAggregation.MEAN and is_integral:
            raise InvalidTypeError(
                f"Cannot assign to '{variable.name}': it is {dtype_name(variable.dtype)}, which"
                " has no mean over replicas. Use VariableAggregation.SUM."
            )
    except Exception as error:
        trouble = error
    line = f"what is assigned to: '{variable.name}', {aggregation.name}"
    fingerprint, digest = StepFingerprint(lambda: [line]), aggregation.value
    strategy.assignments.check(
        [variable], fingerprint, trouble, extra_digest=digest, collective=PendingCollective.VALUES
    )
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        first = operand.detach().clone(memory_format=torch.contiguous_format)
        strategy.ranks.broadcast([first])
        return first
    return all_reduce(strategy, _OPS[aggregation], operand)

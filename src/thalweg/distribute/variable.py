"""Variables whose assignments are the same on all replicas."""

from __future__ import annotations

from typing import Any, cast

import torch

from thalweg.distribute.context import in_cross_replica_context
from thalweg.distribute.nested import reduced
from thalweg.distribute.strategy import get_strategy
from thalweg.errors import InvalidTypeError
from thalweg.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
    dtype_name,
)

_OPS = {VariableAggregation.SUM: "sum", VariableAggregation.MEAN: "mean"}


class AggregatedVariable(Variable):
    """A variable that `assign`, `assign_add` and `assign_sub` set alike on all replicas.

    In a replica of `Strategy.run` the values of all of them become one; each must make the call.
    Across replicas, and outside of a strategy, the value is assigned as it is. See `aggregated`.
    """

    _aggregation: VariableAggregation

    def _operand(self, value: Any) -> torch.Tensor:
        own = super()._operand(value)
        ranks = get_strategy().ranks
        if ranks.is_alone or in_cross_replica_context():
            return own
        with torch.no_grad():
            if self._aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
                first = own.detach().clone(memory_format=torch.contiguous_format)
                ranks.spread([first])
                return first
            found = reduced(get_strategy(), _OPS[self._aggregation], own)
        if found.dtype != self.dtype:
            raise InvalidTypeError(
                f"Cannot assign to '{self.name}': it is {dtype_name(self.dtype)}, which has no"
                " mean over replicas. Use VariableAggregation.SUM."
            )
        return found


def aggregates(synchronization: VariableSynchronization, aggregation: VariableAggregation) -> bool:
    """Whether assignments in replicas are aggregated: what is read per replica is set so, too."""
    is_own = synchronization is VariableSynchronization.ON_READ
    return not is_own and aggregation is not VariableAggregation.NONE


def aggregated(aggregation: VariableAggregation, *args: Any, **options: Any) -> AggregatedVariable:
    """A variable whose assignments in replicas are aggregated.

    Args:
        aggregation: `SUM` or `MEAN` over the replicas, or `ONLY_FIRST_REPLICA`: that of rank 0.
        *args, **options: As for `Variable`.
    """
    made = cast(AggregatedVariable, AggregatedVariable(*args, **options))
    made._aggregation = aggregation
    return made

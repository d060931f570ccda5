"""Training on several ranks of torch.distributed, each with its part of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thalweg.lazily import offering

if TYPE_CHECKING:
    from thalweg.distribute.aggregation import (
        awaited,
        completed_here,
        guarding,
        here,
        strategy_of,
        summed,
        sums_of,
    )
    from thalweg.distribute.agreement import Said
    from thalweg.distribute.context import has_strategy, in_cross_replica_context, updating, within
    from thalweg.distribute.dtensors import is_on_mesh
    from thalweg.distribute.last_sums import taken
    from thalweg.distribute.loss import factor as loss_factor
    from thalweg.distribute.loss import record_loss_reduction, scale_loss_for_estimator
    from thalweg.distribute.modes import aggregated, aggregating, mode
    from thalweg.distribute.reduce_op import ReduceOp
    from thalweg.distribute.reducing import filled
    from thalweg.distribute.replica import ReplicaContext
    from thalweg.distribute.sharding.meshes import Locals, note
    from thalweg.distribute.sharding.shards import Shards
    from thalweg.distribute.sharding.step import SharedStep
    from thalweg.distribute.sharing import here as sharing_here
    from thalweg.distribute.sharing import shards_of, summed_in_parts, taking
    from thalweg.distribute.strategy import (
        Strategy,
        alone,
        current_replica,
        get_replica_context,
        get_strategy,
    )
    from thalweg.distribute.words import in_words

# Imported when they are first asked for: most trainings have no strategy.
_NAMES = {
    "aggregation": "awaited completed_here guarding here strategy_of summed sums_of",
    "agreement": "Said",
    "context": "has_strategy in_cross_replica_context updating within",
    "dtensors": "is_on_mesh",
    "last_sums": "taken",
    "loss": "loss_factor=factor record_loss_reduction scale_loss_for_estimator",
    "modes": "aggregated aggregating mode",
    "reduce_op": "ReduceOp",
    "reducing": "filled",
    "replica": "ReplicaContext",
    "sharding.meshes": "Locals note",
    "sharding.shards": "Shards",
    "sharding.step": "SharedStep",
    "sharing": "shards_of sharing_here=here summed_in_parts taking",
    "strategy": "Strategy alone current_replica get_replica_context get_strategy",
    "words": "in_words",
}

__all__ = [
    "Locals",
    "ReduceOp",
    "ReplicaContext",
    "Said",
    "Shards",
    "SharedStep",
    "Strategy",
    "aggregated",
    "aggregating",
    "alone",
    "awaited",
    "completed_here",
    "current_replica",
    "filled",
    "get_replica_context",
    "get_strategy",
    "guarding",
    "has_strategy",
    "here",
    "in_cross_replica_context",
    "in_words",
    "is_on_mesh",
    "loss_factor",
    "mode",
    "note",
    "record_loss_reduction",
    "scale_loss_for_estimator",
    "shards_of",
    "sharing_here",
    "strategy_of",
    "summed",
    "summed_in_parts",
    "sums_of",
    "taken",
    "taking",
    "updating",
    "within",
]

__getattr__ = offering(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Training on several ranks of torch.distributed, each with its part of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.core.meshes import is_on_mesh
from thalweg.ground.lazily import offered

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
_HOMES = {
    "Locals": "sharding.meshes",
    "ReduceOp": "reduce_op",
    "ReplicaContext": "replica",
    "Said": "agreement",
    "Shards": "sharding.shards",
    "SharedStep": "sharding.step",
    "Strategy": "strategy",
    "aggregated": "modes",
    "aggregating": "modes",
    "alone": "strategy",
    "awaited": "aggregation",
    "completed_here": "aggregation",
    "current_replica": "strategy",
    "filled": "reducing",
    "get_replica_context": "strategy",
    "get_strategy": "strategy",
    "guarding": "aggregation",
    "has_strategy": "context",
    "here": "aggregation",
    "in_cross_replica_context": "context",
    "in_words": "words",
    "loss_factor": "loss:factor",
    "mode": "modes",
    "note": "sharding.meshes",
    "record_loss_reduction": "loss",
    "scale_loss_for_estimator": "loss",
    "shards_of": "sharing",
    "sharing_here": "sharing:here",
    "strategy_of": "aggregation",
    "summed": "aggregation",
    "summed_in_parts": "sharing",
    "sums_of": "aggregation",
    "taken": "last_sums",
    "taking": "sharing",
    "updating": "context",
    "within": "context",
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


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    return offered(__name__, _HOMES, name)

"""Training on several ranks of torch.distributed, each with its part of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.core.meshes import is_on_mesh
from thalweg.ground.lazily import offered

if TYPE_CHECKING:
    from thalweg.distribute.aggregation import (
        current_strategy,
        fill_missing_gradients,
        guard_backward,
        report_errors,
        strategy_of,
        sum_concrete_gradients,
        sum_gradients,
    )
    from thalweg.distribute.agreement import StepFingerprint
    from thalweg.distribute.context import (
        enter_replica,
        enter_update,
        has_strategy,
        in_cross_replica_context,
    )
    from thalweg.distribute.last_sums import commit_sums
    from thalweg.distribute.loss import loss_factor, record_loss_reduction, scale_loss_for_estimator
    from thalweg.distribute.modes import aggregate_assignments, as_mode, with_aggregation
    from thalweg.distribute.reduce_op import ReduceOp
    from thalweg.distribute.reducing import fill_missing
    from thalweg.distribute.replica import ReplicaContext
    from thalweg.distribute.sharding.meshes import Locals, keep_local_slots
    from thalweg.distribute.sharding.shards import Shards
    from thalweg.distribute.sharding.step import SharedStep
    from thalweg.distribute.sharing import (
        enter_shared_step,
        shards_of,
        share_summed_step,
        sum_for_shards,
    )
    from thalweg.distribute.strategy import (
        Strategy,
        current_replica,
        enter_single_replica,
        get_replica_context,
        get_strategy,
    )
    from thalweg.distribute.words import in_words

# Imported when they are first asked for: most trainings have no strategy.
_HOMES = {
    "Locals": "sharding.meshes",
    "ReduceOp": "reduce_op",
    "ReplicaContext": "replica",
    "Shards": "sharding.shards",
    "SharedStep": "sharding.step",
    "StepFingerprint": "agreement",
    "Strategy": "strategy",
    "aggregate_assignments": "modes",
    "as_mode": "modes",
    "commit_sums": "last_sums",
    "current_replica": "strategy",
    "current_strategy": "aggregation",
    "enter_replica": "context",
    "enter_shared_step": "sharing",
    "enter_single_replica": "strategy",
    "enter_update": "context",
    "fill_missing": "reducing",
    "fill_missing_gradients": "aggregation",
    "get_replica_context": "strategy",
    "get_strategy": "strategy",
    "guard_backward": "aggregation",
    "has_strategy": "context",
    "in_cross_replica_context": "context",
    "in_words": "words",
    "keep_local_slots": "sharding.meshes",
    "loss_factor": "loss",
    "record_loss_reduction": "loss",
    "report_errors": "aggregation",
    "scale_loss_for_estimator": "loss",
    "shards_of": "sharing",
    "share_summed_step": "sharing",
    "strategy_of": "aggregation",
    "sum_concrete_gradients": "aggregation",
    "sum_for_shards": "sharing",
    "sum_gradients": "aggregation",
    "with_aggregation": "modes",
}

__all__ = [
    "Locals",
    "ReduceOp",
    "ReplicaContext",
    "Shards",
    "SharedStep",
    "StepFingerprint",
    "Strategy",
    "aggregate_assignments",
    "as_mode",
    "commit_sums",
    "current_replica",
    "current_strategy",
    "enter_replica",
    "enter_shared_step",
    "enter_single_replica",
    "enter_update",
    "fill_missing",
    "fill_missing_gradients",
    "get_replica_context",
    "get_strategy",
    "guard_backward",
    "has_strategy",
    "in_cross_replica_context",
    "in_words",
    "is_on_mesh",
    "keep_local_slots",
    "loss_factor",
    "record_loss_reduction",
    "report_errors",
    "scale_loss_for_estimator",
    "shards_of",
    "share_summed_step",
    "strategy_of",
    "sum_concrete_gradients",
    "sum_for_shards",
    "sum_gradients",
    "with_aggregation",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    return offered(__name__, _HOMES, name)

"""Data-parallel training over the ranks of torch.distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thalweg._base.lazy import offering
from thalweg._core.dtensor import is_on_mesh

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
    from thalweg.distribute.all_reduce_gradients import fill_missing
    from thalweg.distribute.consistency_check import StepFingerprint, in_words
    from thalweg.distribute.context import (
        enter_replica,
        enter_update,
        has_strategy,
        in_cross_replica_context,
    )
    from thalweg.distribute.extended import ReplicaContext
    from thalweg.distribute.loss import loss_factor, record_loss_reduction, scale_loss_for_estimator
    from thalweg.distribute.reduce_op import ReduceOp
    from thalweg.distribute.reduction_tracking import commit_sums
    from thalweg.distribute.sharded_slots import (
        enter_shared_step,
        shards_of,
        share_summed_step,
        sum_for_shards,
    )
    from thalweg.distribute.sharding.dtensor_step import LocalShards, keep_local_slots
    from thalweg.distribute.sharding.sharded_step import SharedStep
    from thalweg.distribute.sharding.shards import Shards
    from thalweg.distribute.strategy import (
        Strategy,
        current_replica,
        enter_single_replica,
        get_replica_context,
        get_strategy,
    )
    from thalweg.distribute.variable_aggregation import (
        aggregate_assignments,
        as_mode,
        with_aggregation,
    )

# Imported when they are first asked for: most trainings have no strategy.
_MODULES = {
    "aggregation": (
        "current_strategy", "fill_missing_gradients", "guard_backward", "report_errors",
        "strategy_of", "sum_concrete_gradients", "sum_gradients",
    ),
    "all_reduce_gradients": ("fill_missing",),
    "consistency_check": ("StepFingerprint", "in_words"),
    "context": ("enter_replica", "enter_update", "has_strategy", "in_cross_replica_context"),
    "extended": ("ReplicaContext",),
    "loss": ("loss_factor", "record_loss_reduction", "scale_loss_for_estimator"),
    "reduce_op": ("ReduceOp",),
    "reduction_tracking": ("commit_sums",),
    "sharded_slots": ("enter_shared_step", "shards_of", "share_summed_step", "sum_for_shards"),
    "sharding.dtensor_step": ("LocalShards", "keep_local_slots"),
    "sharding.sharded_step": ("SharedStep",),
    "sharding.shards": ("Shards",),
    "strategy": (
        "Strategy", "current_replica", "enter_single_replica", "get_replica_context",
        "get_strategy",
    ),
    "variable_aggregation": ("aggregate_assignments", "as_mode", "with_aggregation"),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
__all__ = [
    "LocalShards", "ReduceOp", "ReplicaContext", "Shards", "SharedStep", "StepFingerprint",
    "Strategy", "aggregate_assignments", "as_mode", "commit_sums", "current_replica",
    "current_strategy", "enter_replica", "enter_shared_step", "enter_single_replica",
    "enter_update", "fill_missing", "fill_missing_gradients", "get_replica_context", "get_strategy",
    "guard_backward", "has_strategy", "in_cross_replica_context", "in_words", "is_on_mesh",
    "keep_local_slots", "loss_factor", "record_loss_reduction", "report_errors",
    "scale_loss_for_estimator", "shards_of", "share_summed_step", "strategy_of",
    "sum_concrete_gradients", "sum_for_shards", "sum_gradients", "with_aggregation",
]  # fmt: skip

__getattr__, __dir__ = offering(__name__, _HOMES, {}, object)

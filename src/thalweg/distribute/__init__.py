"""Training on several ranks of torch.distributed, each with its part of the batch."""

from thalweg.distribute.aggregation import (
    awaited,
    completed_here,
    guarding,
    here,
    strategy_of,
    summed,
    sums_of,
    taken,
)
from thalweg.distribute.agreement import Said
from thalweg.distribute.context import has_strategy, in_cross_replica_context, within
from thalweg.distribute.loss import factor as loss_factor
from thalweg.distribute.loss import record_loss_reduction, scale_loss_for_estimator
from thalweg.distribute.reduce_op import ReduceOp
from thalweg.distribute.reducing import filled
from thalweg.distribute.replica import ReplicaContext
from thalweg.distribute.sharding.meshes import Locals, is_on_mesh, note
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
    updating,
)
from thalweg.distribute.variable import aggregated, aggregating, mode
from thalweg.distribute.words import in_words

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

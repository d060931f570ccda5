"""Training on several ranks of torch.distributed, each with its part of the batch."""

from thalweg.distribute.aggregation import guarding, here, strategy_of, summed, sums_of, taken
from thalweg.distribute.context import has_strategy, in_cross_replica_context, within
from thalweg.distribute.loss import factor as loss_factor
from thalweg.distribute.loss import record_loss_reduction, scale_loss_for_estimator
from thalweg.distribute.reduce_op import ReduceOp
from thalweg.distribute.reducing import filled
from thalweg.distribute.replica import ReplicaContext
from thalweg.distribute.strategy import (
    Strategy,
    alone,
    current_replica,
    get_replica_context,
    get_strategy,
    updating,
)
from thalweg.distribute.variable import aggregated, aggregates
from thalweg.distribute.words import in_words

__all__ = [
    "ReduceOp",
    "ReplicaContext",
    "Strategy",
    "aggregated",
    "aggregates",
    "alone",
    "current_replica",
    "filled",
    "get_replica_context",
    "get_strategy",
    "guarding",
    "has_strategy",
    "here",
    "in_cross_replica_context",
    "in_words",
    "loss_factor",
    "record_loss_reduction",
    "scale_loss_for_estimator",
    "strategy_of",
    "summed",
    "sums_of",
    "taken",
    "updating",
    "within",
]

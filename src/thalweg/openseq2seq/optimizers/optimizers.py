"""OpenSeq2Seq's module `optimizers.optimizers`."""

from thalweg.openseq2seq.optimizers.clipping import (
    _clip_by_global_norm,
    _clip_gradients_by_norm,
    _global_norm_with_cast,
)
from thalweg.openseq2seq.optimizers.name_tables import OPTIMIZER_CLS_NAMES, OPTIMIZER_SUMMARIES
from thalweg.openseq2seq.optimizers.post_process import post_process_gradients
from thalweg.openseq2seq.optimizers.reduction import reduce_gradients
from thalweg.openseq2seq.optimizers.regularization import get_regularization_loss
from thalweg.openseq2seq.optimizers.step import TrainingStep
from thalweg.openseq2seq.optimizers.training import optimize_loss

__all__ = [
    "OPTIMIZER_CLS_NAMES", "OPTIMIZER_SUMMARIES", "TrainingStep", "_clip_by_global_norm",
    "_clip_gradients_by_norm", "_global_norm_with_cast", "get_regularization_loss", "optimize_loss",
    "post_process_gradients", "reduce_gradients",
]  # fmt: skip

__dir__ = __all__.copy

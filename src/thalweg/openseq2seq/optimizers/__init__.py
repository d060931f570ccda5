"""OpenSeq2Seq's package `optimizers`."""

from thalweg.openseq2seq.optimizers import (
    automatic_loss_scaler,
    lr_policies,
    mp_wrapper,
    novograd,
    optimizers,
)
from thalweg.openseq2seq.optimizers.optimizers import get_regularization_loss, optimize_loss

__all__ = [
    "automatic_loss_scaler",
    "get_regularization_loss",
    "lr_policies",
    "mp_wrapper",
    "novograd",
    "optimize_loss",
    "optimizers",
]

"""OpenSeq2Seq's package `optimizers`."""

from thalweg._core.config_registry import LOSS_SCALERS, OPTIMIZERS, RATES
from thalweg.openseq2seq.optimizers import (
    automatic_loss_scaler,
    lr_policies,
    mp_wrapper,
    novograd,
    optimizers,
)
from thalweg.openseq2seq.optimizers.optimizers import get_regularization_loss, optimize_loss

__all__ = [
    "automatic_loss_scaler", "get_regularization_loss", "lr_policies", "mp_wrapper", "novograd",
    "optimize_loss", "optimizers",
]  # fmt: skip

__dir__ = __all__.copy

OPTIMIZERS.add_all("openseq2seq:", (novograd.NovoGrad, mp_wrapper.MixedPrecisionOptimizerWrapper))
LOSS_SCALERS.add_all("", (automatic_loss_scaler.AutomaticLossScaler,))
RATES.add_all(
    "lr_policies.",
    (
        lr_policies.fixed_lr, lr_policies.piecewise_constant, lr_policies.exp_decay,
        lr_policies.poly_decay, lr_policies.cosine_decay, lr_policies.transformer_policy,
        lr_policies.inv_poly_decay,
    ),
)  # fmt: skip

"""OpenSeq2Seq's package `optimizers`."""

from thalweg.openseq2seq.optimizers import automatic_loss_scaler, lr_policies, novograd

__all__ = ["automatic_loss_scaler", "lr_policies", "novograd"]

"""What OpenSeq2Seq trains with: its learning-rate policies, loss scalers and optimizers."""

from thalweg.openseq2seq import optimizers

__all__ = ["optimizers"]

"""What OpenSeq2Seq trains with: its learning-rate policies, loss scalers and optimizers."""

from thalweg.openseq2seq import optimizers
from thalweg.openseq2seq.length import TrainingLength, policy_params, training_length

__all__ = ["TrainingLength", "optimizers", "policy_params", "training_length"]

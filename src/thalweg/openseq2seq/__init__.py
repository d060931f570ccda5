"""Training as in OpenSeq2Seq: learning-rate policies, loss scalers, optimizers, configs."""

from thalweg.openseq2seq import optimizers
from thalweg.openseq2seq.config import TrainingConfig, from_config
from thalweg.openseq2seq.training_length import TrainingLength, policy_params, training_length

__all__ = [
    "TrainingConfig", "TrainingLength", "from_config", "optimizers", "policy_params",
    "training_length",
]  # fmt: skip

__dir__ = __all__.copy

"""Training as in OpenSeq2Seq: learning-rate policies, loss scalers, optimizers, configs."""

from thalweg.openseq2seq import optimizers
from thalweg.openseq2seq.config import TrainingConfig, from_config
from thalweg.openseq2seq.training_length import TrainingLength, policy_params, training_length

__all__ = [
    "TrainingConfig",
    "TrainingLength",
    "from_config",
    "optimizers",
    "policy_params",
    "training_length",
]


def __dir__() -> list[str]:
    return sorted(__all__)

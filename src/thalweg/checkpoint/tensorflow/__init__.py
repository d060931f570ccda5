"""Read, restore and write TensorFlow and Keras checkpoints without TensorFlow."""

from thalweg.checkpoint.tensorflow.convert import convert
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import (
    FoundOptimizer,
    MixedPrecision,
    TensorFlowCheckpoint,
)
from thalweg.checkpoint.tensorflow.load import load
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import Rules
from thalweg.checkpoint.tensorflow.restore import restore
from thalweg.checkpoint.tensorflow.save import save

__all__ = [
    "FoundOptimizer",
    "MixedPrecision",
    "Rules",
    "TensorFlowCheckpoint",
    "convert",
    "load",
    "restore",
    "save",
]


def __dir__() -> list[str]:
    return sorted(__all__)

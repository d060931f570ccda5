"""Checkpoints of TensorFlow and Keras: read, restored and written, with neither installed."""

from thalweg.checkpoint.tensorflow.converting import convert
from thalweg.checkpoint.tensorflow.loading import load
from thalweg.checkpoint.tensorflow.placing.rules import Rules
from thalweg.checkpoint.tensorflow.restoring import restore
from thalweg.checkpoint.tensorflow.saving import save
from thalweg.checkpoint.tensorflow.sorting.contents import FoundOptimizer, TensorFlowCheckpoint
from thalweg.checkpoint.tensorflow.sorting.mixed import MixedPrecision

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

"""Checkpoints of TensorFlow and Keras: read, restored and written, with neither installed."""

from thalweg.checkpoint.tensorflow.contents import (
    FoundOptimizer,
    MixedPrecision,
    TensorFlowCheckpoint,
)
from thalweg.checkpoint.tensorflow.loading import load
from thalweg.checkpoint.tensorflow.restoring import restore
from thalweg.checkpoint.tensorflow.rules import Rules

__all__ = [
    "FoundOptimizer",
    "MixedPrecision",
    "Rules",
    "TensorFlowCheckpoint",
    "load",
    "restore",
]

"""Checkpoints of TensorFlow and Keras: read, restored and written, with neither installed."""

from thalweg.checkpoint.tensorflow.contents import FoundOptimizer, TensorFlowCheckpoint
from thalweg.checkpoint.tensorflow.converting import convert
from thalweg.checkpoint.tensorflow.loading import load
from thalweg.checkpoint.tensorflow.mixed import MixedPrecision
from thalweg.checkpoint.tensorflow.restoring import restore
from thalweg.checkpoint.tensorflow.rules import Rules
from thalweg.checkpoint.tensorflow.writing import save

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

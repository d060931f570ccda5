"""Optimizers of `tf.contrib` from TensorFlow 1."""

from thalweg.v1.contrib import framework as framework
from thalweg.v1.contrib import layers as layers
from thalweg.v1.contrib import opt as opt
from thalweg.v1.missing import attribute_of

__all__ = ["framework", "layers", "opt"]

__dir__ = __all__.copy

__getattr__ = attribute_of("contrib")

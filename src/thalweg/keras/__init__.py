"""Keras front end: `thalweg.keras.optimizers`."""

from thalweg.keras import optimizers as optimizers

__all__ = ["optimizers"]

__dir__ = __all__.copy

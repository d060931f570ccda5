"""The Keras face: `thalweg.keras.optimizers`."""

from thalweg.keras import optimizers as optimizers
from thalweg.tensorflow_names import lend

__all__ = ["optimizers"]

lend()

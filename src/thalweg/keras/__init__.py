"""The Keras face: `thalweg.keras.optimizers`."""

from thalweg.keras import optimizers as optimizers

__all__ = ["optimizers"]

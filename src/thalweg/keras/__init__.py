"""Keras front end: `thalweg.keras.optimizers`."""

from thalweg.keras import optimizers as optimizers

__all__ = ["optimizers"]


def __dir__() -> list[str]:
    return sorted(__all__)

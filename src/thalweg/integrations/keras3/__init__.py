"""Thalweg's optimizers as optimizers of Keras 3, for `model.compile`; needs the torch backend.

Example:
    >>> import keras
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer=Adam(0.001, global_clipnorm=1.0), loss="mse")
    >>> model.optimizer.wrapped.global_clipnorm
    1.0
"""

from thalweg.integrations.keras3.backend import import_keras

import_keras()

from thalweg.integrations.keras3.classes import (  # noqa: E402
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    Nadam,
    RMSprop,
)
from thalweg.integrations.keras3.optimizer import FusedOptimizer, from_thalweg  # noqa: E402
from thalweg.integrations.keras3.schedules import Schedule  # noqa: E402

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "Ftrl",
    "FusedOptimizer",
    "Nadam",
    "RMSprop",
    "Schedule",
    "from_thalweg",
]


def __dir__() -> list[str]:
    return sorted(__all__)

"""Learning-rate schedules with the numbers of `tf.keras.optimizers.schedules`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thalweg._base.lazy import offering
from thalweg.schedules.base import LearningRateSchedule

if TYPE_CHECKING:
    from thalweg.schedules.cosine import CosineDecay, CosineDecayRestarts
    from thalweg.schedules.exponential import ExponentialDecay
    from thalweg.schedules.inverse_time import InverseTimeDecay
    from thalweg.schedules.linear_cosine import LinearCosineDecay, NoisyLinearCosineDecay
    from thalweg.schedules.piecewise import PiecewiseConstantDecay
    from thalweg.schedules.polynomial import PolynomialDecay
    from thalweg.schedules.serialization import deserialize, serialize

__all__ = [
    "CosineDecay",
    "CosineDecayRestarts",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LearningRateSchedule",
    "LinearCosineDecay",
    "NoisyLinearCosineDecay",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "deserialize",
    "serialize",
]

_HOMES = {
    "CosineDecay": "cosine",
    "CosineDecayRestarts": "cosine",
    "ExponentialDecay": "exponential",
    "InverseTimeDecay": "inverse_time",
    "LinearCosineDecay": "linear_cosine",
    "NoisyLinearCosineDecay": "linear_cosine",
    "PiecewiseConstantDecay": "piecewise",
    "PolynomialDecay": "polynomial",
    "deserialize": "serialization",
    "serialize": "serialization",
}


__getattr__, __dir__ = offering(__name__, _HOMES, {}, object)

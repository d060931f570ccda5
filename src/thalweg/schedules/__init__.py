"""Learning-rate schedules with the numbers of `tf.keras.optimizers.schedules`."""

from thalweg.schedules.base import LearningRateSchedule
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

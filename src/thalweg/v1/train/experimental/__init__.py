"""`tf.train.experimental`: loss scaling."""

from thalweg.v1.missing import attribute_of
from thalweg.v1.train.experimental.loss_scale import DynamicLossScale, FixedLossScale, LossScale
from thalweg.v1.train.experimental.loss_scale_optimizer import MixedPrecisionLossScaleOptimizer

__all__ = ["DynamicLossScale", "FixedLossScale", "LossScale", "MixedPrecisionLossScaleOptimizer"]

__dir__ = __all__.copy

__getattr__ = attribute_of("train.experimental")

"""The optimizers of TensorFlow 1.15's `tf.contrib.opt`."""

from thalweg._core.config_registry import OPTIMIZERS
from thalweg.v1.contrib.opt.adam_w import AdamWOptimizer
from thalweg.v1.contrib.opt.adamax import AdaMaxOptimizer
from thalweg.v1.contrib.opt.lars import LARSOptimizer
from thalweg.v1.contrib.opt.lazy_adam import LazyAdamOptimizer
from thalweg.v1.contrib.opt.momentum_w import MomentumWOptimizer
from thalweg.v1.contrib.opt.moving_average import MovingAverageOptimizer
from thalweg.v1.contrib.opt.nadam import NadamOptimizer
from thalweg.v1.contrib.opt.variable_clipping import VariableClippingOptimizer
from thalweg.v1.contrib.opt.weight_decay import (
    DecoupledWeightDecayExtension,
    extend_with_decoupled_weight_decay,
)
from thalweg.v1.missing import attribute_of

__all__ = [
    "AdaMaxOptimizer", "AdamWOptimizer", "DecoupledWeightDecayExtension", "LARSOptimizer",
    "LazyAdamOptimizer", "MomentumWOptimizer", "MovingAverageOptimizer", "NadamOptimizer",
    "VariableClippingOptimizer", "extend_with_decoupled_weight_decay",
]  # fmt: skip

__dir__ = __all__.copy

__getattr__ = attribute_of("contrib.opt")

OPTIMIZERS.add_all(
    "v1:",
    (
        AdaMaxOptimizer, AdamWOptimizer, LARSOptimizer, LazyAdamOptimizer, MomentumWOptimizer,
        MovingAverageOptimizer, NadamOptimizer, VariableClippingOptimizer,
    ),
)  # fmt: skip

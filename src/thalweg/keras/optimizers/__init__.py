"""Keras' OptimizerV2 optimizers and schedules, as `tf.keras.optimizers` had them."""

from thalweg import schedules as schedules
from thalweg._core.config_registry import OPTIMIZERS
from thalweg.keras.optimizers.optimizer import Optimizer
from thalweg.keras.optimizers.rule_optimizer import RuleOptimizer
from thalweg.keras.optimizers.serialization import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    Nadam,
    RMSprop,
    deserialize,
    get,
    serialize,
)

__all__ = [
    "SGD", "Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "Optimizer", "RMSprop",
    "RuleOptimizer", "deserialize", "get", "schedules", "serialize",
]  # fmt: skip

__dir__ = __all__.copy

OPTIMIZERS.add_all("", (SGD, Adam, Adamax, Nadam, Adagrad, Adadelta, RMSprop, Ftrl, RuleOptimizer))

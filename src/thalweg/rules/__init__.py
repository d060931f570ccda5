"""The update rules, one file each, from the simplest to the longest."""

from __future__ import annotations

from thalweg._base.lazy import offering
from thalweg.formula import Rule

KERAS_RULES: tuple[Rule, ...]
V1_RULES: tuple[Rule, ...]
OPENSEQ2SEQ_RULES: tuple[Rule, ...]
RULES: tuple[Rule, ...]

# The file of each rule, which is imported when the rule is asked for.
_KERAS = {
    "SGD": "gradient_descent",
    "MOMENTUM": "momentum",
    "NESTEROV": "momentum",
    "ADAGRAD": "adagrad",
    "ADADELTA": "adadelta",
    "RMSPROP": "rmsprop",
    "CENTERED_RMSPROP": "rmsprop",
    "MOMENTUM_RMSPROP": "rmsprop_momentum",
    "CENTERED_MOMENTUM_RMSPROP": "rmsprop_momentum",
    "ADAMAX": "adamax",
    "ADAM": "adam",
    "AMSGRAD": "amsgrad",
    "NADAM": "nadam",
    "FTRL": "ftrl",
    "FTRL_POWER": "ftrl_power",
}

# Rules of tf.train and tf.contrib.opt. TensorFlow 1's gradient descent is SGD, the rule of Keras.
_V1 = {
    "HEAVY_BALL": "heavy_ball",
    "NESTEROV_BALL": "heavy_ball",
    "PROXIMAL_GRADIENT_DESCENT": "proximal_gradient_descent",
    "ADAGRAD_V1": "adagrad_v1",
    "PROXIMAL_ADAGRAD": "proximal_adagrad",
    "ADAGRAD_DA": "adagrad_da",
    "ADADELTA_V1": "adadelta_v1",
    "RMSPROP_V1": "rmsprop_v1",
    "CENTERED_RMSPROP_V1": "rmsprop_v1",
    "ADAM_V1": "adam_v1",
    "FTRL_V1": "ftrl_v1",
    "FTRL_POWER_V1": "ftrl_v1",
    "LAZY_ADAM": "lazy_adam",
    "NESTEROV_ADAM": "nesterov_adam",
    "ADAMAX_V1": "adamax_v1",
    "ADAM_W": "adam_w",
    "MOMENTUM_W": "momentum_w",
    "NESTEROV_W": "momentum_w",
    "LARS": "lars",
    "NESTEROV_LARS": "lars",
}

_OPENSEQ2SEQ = {"NOVOGRAD": "novograd"}

_HOMES = {**_KERAS, **_V1, **_OPENSEQ2SEQ, "NOVOGRAD_AS_SHIPPED": "novograd"}
_LISTS = {
    "KERAS_RULES": _KERAS,
    "V1_RULES": _V1,
    "OPENSEQ2SEQ_RULES": _OPENSEQ2SEQ,
    "RULES": {**_KERAS, **_V1, **_OPENSEQ2SEQ},
}
__all__ = ["Rule", *_HOMES, *_LISTS]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__ = offering(__name__, _HOMES, _LISTS, Rule)

"""`tf.contrib.layers`: layers, initial values, penalties and `optimize_loss`.

All names but `l2_regularizer` come from `thalweg.tf.contrib.layers`. First access imports
`thalweg.tf`, which adds TensorFlow's methods to torch's classes.
"""

from __future__ import annotations

from typing import Any

from thalweg._base.lazy import UPPER_PACKAGES
from thalweg.v1.contrib.layers.regularizers import l2_regularizer
from thalweg.v1.missing import attribute_of

_OF_FACADE = (
    "OPTIMIZER_CLS_NAMES", "OPTIMIZER_SUMMARIES", "adaptive_clipping_fn", "apply_regularization",
    "avg_pool2d", "batch_norm", "conv2d", "conv2d_transpose", "convolution2d",
    "convolution2d_transpose", "dropout", "flatten", "fully_connected", "l1_regularizer",
    "layer_norm", "linear", "max_pool2d", "optimize_loss", "relu", "sum_regularizer",
    "variance_scaling_initializer", "xavier_initializer", "xavier_initializer_conv2d",
)  # fmt: skip

__all__ = [*_OF_FACADE, "l2_regularizer"]  # pyright: ignore[reportUnsupportedDunderAll]

_missing = attribute_of("contrib.layers")

__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name in _OF_FACADE:
        return getattr(UPPER_PACKAGES["tf"]().compat.v1.contrib.layers, name)
    return _missing(name)

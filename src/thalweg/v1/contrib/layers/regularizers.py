"""Penalties on weights."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError, InvalidTypeError


def l2_regularizer(scale: float, scope: str | None = None) -> Callable[[Any], Any]:
    """Return a function that computes the penalty scale sum(weights^2) / 2 of a tensor.

    Args:
        scale: A float of at least 0.
        scope: Ignored.

    Returns:
        `penalty(weights)`, for eager or symbolic tensors, returns a tensor of shape () and of the
        weights' dtype. It returns None if `scale` is 0.

    Raises:
        TypeError: `scale` is not a float.
        ValueError: `scale` is negative, infinite or NaN.

    Example:
        >>> import torch
        >>> l2_regularizer(0.1)(torch.tensor([1.0, 2.0]))
        tensor(0.2500)

    Reference: TensorFlow 1.15, tf.contrib.layers.l2_regularizer
    """
    if isinstance(scale, numbers.Integral) or not isinstance(scale, numbers.Real):
        raise InvalidTypeError(f"scale must be a float, not {show_value(scale)}.")
    if not (scale >= 0 and math.isfinite(scale)):
        raise InvalidArgumentError(f"scale must be a finite number of at least 0, not {scale}.")

    def l2_penalty(weights: Any) -> object:
        return None if scale == 0 else (weights * weights).sum() * 0.5 * float(scale)

    return l2_penalty

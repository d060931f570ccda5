"""Divisors with equal results on every device."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def as_divisor(value: Any, tensor: Any) -> Any:
    """Return `value` in a form that divides `tensor` with equal bits on every device.

    On a GPU torch multiplies by the inverse of a Python number instead of dividing.

    Returns:
        A tensor of shape () if `value` is a number and `tensor` a tensor, on its device. Otherwise
        `value` itself: it is a tensor, or `tensor` is a traced symbol, which native code divides.
    """
    if isinstance(value, Tensor) or not isinstance(tensor, Tensor):
        return value
    return tensor.new_full((), value)

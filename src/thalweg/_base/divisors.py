"""Divisors with equal results on every device."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def as_divisor(value: Any, tensor: Any) -> Any:
    """Return `value` in a form that divides `tensor` with equal bits on every device.

    On a GPU torch multiplies by the inverse of a Python number instead of dividing.

    Returns:
        For a number and a tensor: a tensor of shape (), of the dtype and device of `tensor`. In
        all other cases `value` itself: tensors, and symbols of traced formulas, need no conversion.
    """
    if isinstance(value, Tensor) or not isinstance(tensor, Tensor):
        return value
    return tensor.new_full((), value)

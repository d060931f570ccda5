"""Divisors with equal results on every device."""

from __future__ import annotations

from torch import Tensor


def as_divisor(value: float | Tensor, tensor: Tensor) -> Tensor:
    """Return a number as a tensor of shape () on a tensor's device; a tensor unchanged.

    On a GPU torch multiplies by the inverse of a Python number instead of dividing by it.
    """
    return value if isinstance(value, Tensor) else tensor.new_full((), value)

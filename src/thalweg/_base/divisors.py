"""Divisors of numbers, equal on every device."""

from __future__ import annotations

from torch import Tensor


def as_divisor(value: float | Tensor, like: Tensor) -> Tensor:
    """Return a number as a tensor of shape () beside another one; a tensor as it is.

    On a GPU torch multiplies by the inverse of a Python number instead of dividing by it.
    """
    return value if isinstance(value, Tensor) else like.new_full((), value)

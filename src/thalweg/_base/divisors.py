"""Divisors with equal results on every device."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def as_divisor(value: Any, tensor: Any) -> Any:
    """Return a number as a tensor of shape () on the device of `tensor`; a tensor unchanged.

    Return the number if `tensor` is not a tensor, but a symbol of a replayed step.

    On a GPU torch multiplies by the inverse of a Python number instead of dividing by it.
    """
    if isinstance(value, Tensor) or not isinstance(tensor, Tensor):
        return value
    return tensor.new_full((), value)

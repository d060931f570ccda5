"""Divisors with equal results on every device."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def as_divisor(value: Any, tensor: Any) -> Any:
    """Return the divisor `value` in the form that is to divide `tensor`.

    On a GPU torch multiplies by the inverse of a Python number instead of dividing by it.

    Returns:
        A tensor of shape () on the device of `tensor` if `value` is a number and `tensor` a tensor.
        Otherwise `value` itself: it is a tensor, or `tensor` is a symbol of a traced number, which
        native code divides by numbers.
    """
    if isinstance(value, Tensor) or not isinstance(tensor, Tensor):
        return value
    return tensor.new_full((), value)

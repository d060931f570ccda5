"""Checks of constructor arguments, in TensorFlow's words."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thalweg.errors import InvalidArgumentError
from thalweg.variable import check_held


def check_positive(name: str, value: float) -> None:
    """Refuse a number that is not above 0; ValueError."""
    if not value > 0.0:
        raise ValueError(f"{name} must be positive: {value}")


def check_not_negative(name: str, value: float) -> None:
    """Raise a ValueError for a number below 0, and a LayoutError for a tensor that was cut."""
    if isinstance(value, Tensor):
        check_held(value, name)
    if value < 0.0:
        raise ValueError(f"{name} {value:f} needs to be positive or zero")


def check_step_size(name: str, value: Any, *, zero: bool = False) -> None:
    """Refuse a scalar that a kernel cannot use: below 0, or 0 where `zero` is not allowed.

    Raises:
        InvalidArgumentError: Names the argument.
    """
    if not (value >= 0 if zero else value > 0):
        kind = "not negative" if zero else "positive"
        raise InvalidArgumentError(f"{name} must be {kind}: {value}")

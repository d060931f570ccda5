"""Checks of constructor arguments, in TensorFlow's words."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thalweg.errors import InvalidArgumentError
from thalweg.variable import check_held


def check_positive(name: str, hyper: float) -> None:
    """Raise ValueError for a number that is not above 0."""
    if not hyper > 0.0:
        raise ValueError(f"{name} must be positive: {hyper}")


def check_not_negative(name: str, hyper: float) -> None:
    """Raise a ValueError for a number below 0, and a LayoutError for a tensor that was cut."""
    if isinstance(hyper, Tensor):
        check_held(hyper, name)
    if hyper < 0.0:
        raise ValueError(f"{name} {hyper:f} needs to be positive or zero")


def check_step_size(name: str, hyper: Any, *, zero: bool = False) -> None:
    """Raise unless a scalar is above 0; 0 is valid if `zero` allows it.

    Raises:
        InvalidArgumentError: Names the argument.
    """
    if not (hyper >= 0 if zero else hyper > 0):
        kind = "not negative" if zero else "positive"
        raise InvalidArgumentError(f"{name} must be {kind}: {hyper}")

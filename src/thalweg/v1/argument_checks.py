"""Checks of arguments: numbers of seconds, and bounds with TensorFlow's error texts."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core.hyperparameters import is_number
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import check_held

# 31 years: Python's clocks overflow a little beyond it.
LONGEST = 1e9


def check_seconds(name: str, seconds: object, *, non_negative: bool = False) -> None:
    """Raise unless `seconds` is a number; infinity is valid.

    Raises:
        InvalidTypeError: `seconds` is not a number.
        InvalidArgumentError: `seconds` is NaN, or below 0 although `non_negative` is set.
    """
    # bool is a subclass of int.
    if not is_number(seconds) or isinstance(seconds, bool):
        raise InvalidTypeError(f"{name} must be a number of seconds, not {show_value(seconds)}.")
    # NaN alone differs from itself.
    if seconds != seconds or (non_negative and seconds < 0):
        expected = "0 or more" if non_negative else "a number"
        raise InvalidArgumentError(f"{name} must be {expected}, not {show_value(seconds)}.")


def wait_seconds(seconds: float) -> float:
    """Return `seconds` clipped to [0, `LONGEST`], the range that Python's waits accept."""
    return float(min(max(seconds, 0.0), LONGEST))


def check_positive(name: str, hyper: float) -> None:
    """Raise ValueError for a number that is not above 0."""
    # Not `<=`, which would let NaN pass.
    if not hyper > 0.0:
        raise ValueError(f"{name} must be positive: {hyper}")


def check_not_negative(name: str, hyper: float) -> None:
    """Raise ValueError for a number below 0, and LayoutError for a tensor whose storage was cut."""
    if isinstance(hyper, Tensor):
        check_held(hyper, name)
    if hyper < 0.0:
        raise ValueError(f"{name} {hyper:f} needs to be positive or zero")


def check_step_size(name: str, hyper: Any, *, zero: bool = False) -> None:
    """Raise InvalidArgumentError unless a scalar is above 0; with `zero`, 0 is valid, too."""
    if not (hyper >= 0 if zero else hyper > 0):
        kind = "not negative" if zero else "positive"
        raise InvalidArgumentError(f"{name} must be {kind}: {hyper}")

"""Checks of arguments that are numbers of seconds."""

from __future__ import annotations

from thalweg._base.showing import show_value
from thalweg._core.hyperparameters import is_number
from thalweg.errors import InvalidArgumentError, InvalidTypeError

LONGEST = 1e9  # 31 years; Python's clocks overflow beyond some more


def check_seconds(name: str, seconds: object, *, non_negative: bool = False) -> None:
    """Raise unless the argument is a number of seconds; infinity is valid.

    Raises:
        InvalidTypeError: `seconds` is not a number.
        InvalidArgumentError: `seconds` is NaN, or below 0 although `non_negative` is set.
    """
    if not is_number(seconds) or isinstance(seconds, bool):
        raise InvalidTypeError(f"{name} must be a number of seconds, not {show_value(seconds)}.")
    if seconds != seconds or (non_negative and seconds < 0):
        expected = "0 or more" if non_negative else "a number"
        raise InvalidArgumentError(f"{name} must be {expected}, not {show_value(seconds)}.")


def wait_seconds(seconds: float) -> float:
    """Return a number of seconds clipped to [0, `LONGEST`], which Python's waits accept."""
    return float(min(max(seconds, 0.0), LONGEST))

"""Numbers of seconds that others give, and what Python can wait for."""

from __future__ import annotations

from thalweg._base.showing import show_value
from thalweg._core.hyperparameters import is_number
from thalweg.errors import InvalidArgumentError, InvalidTypeError

LONGEST = 1e9  # 31 years; Python's clocks overflow beyond some more


def check_seconds(name: str, value: object, *, is_at_least_0: bool = False) -> None:
    """Refuse what is no number of seconds; infinity is one.

    Raises:
        InvalidTypeError: It is no number.
        InvalidArgumentError: It is NaN, or below 0 where that means nothing.
    """
    if not is_number(value) or isinstance(value, bool):
        raise InvalidTypeError(f"{name} must be a number of seconds, not {show_value(value)}.")
    if value != value or (is_at_least_0 and value < 0):
        wanted = "0 or more" if is_at_least_0 else "a number"
        raise InvalidArgumentError(f"{name} must be {wanted}, not {show_value(value)}.")


def wait_seconds(seconds: float) -> float:
    """Return a time as Python can wait for it, in seconds: at least 0, and not so long that it
    overflows.
    """
    return float(min(max(seconds, 0.0), LONGEST))

"""Problems of races by name."""

from __future__ import annotations

from collections.abc import Callable

from thalweg._cli.race.problems import digit_lines, digits, lm, stdlib_text
from thalweg._cli.race.problems.problem import Problem

PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "digits": digits.load,
    "lines": digit_lines.load,
    "stdlib": stdlib_text.load,
    "lm": lm.load,
}
DEFAULT_OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "digits": digits.OPTIMIZERS,
    "lines": digit_lines.OPTIMIZERS,
    "stdlib": stdlib_text.OPTIMIZERS,
    "lm": lm.OPTIMIZERS,
}

__all__ = ["DEFAULT_OPTIMIZERS", "PROBLEMS", "Problem"]

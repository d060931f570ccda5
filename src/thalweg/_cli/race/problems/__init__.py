"""Problems of races by name."""

from __future__ import annotations

from collections.abc import Callable

from thalweg._cli.race.problems import digit_lines, digits, lm, stdlib_text
from thalweg._cli.race.problems.problem import Problem

_MODULES = {"digits": digits, "lines": digit_lines, "stdlib": stdlib_text, "lm": lm}
PROBLEMS: dict[str, Callable[[int], Problem]] = {
    name: module.load for name, module in _MODULES.items()
}
DEFAULT_OPTIMIZERS: dict[str, tuple[str, ...]] = {
    name: module.OPTIMIZERS for name, module in _MODULES.items()
}

__all__ = ["DEFAULT_OPTIMIZERS", "PROBLEMS", "Problem"]

"""Source text of reductions, in the order of `_engines/row_column_reductions.py`."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._engines.formula_parser import FUNCTION_PREFIX


@dataclass(frozen=True)
class Reduction:
    """How values become one.

    Attributes:
        reduce: As that of a `Measure`: "sum" or "largest".
    """

    reduce: str

    @property
    def zero(self) -> str:
        """What lanes begin with."""
        return "0.0" if self.reduce == "sum" else "-1e999"

    def join(self, first: str, second: str) -> str:
        """Both in one."""
        if self.reduce == "sum":
            return f"({first} + {second})"
        return f"{FUNCTION_PREFIX}maximum({first}, {second})"

    def fold(self, values: list[str]) -> str:
        """Values in the least power of two of places, folded to one."""
        values = values + [self.zero] * ((1 << (len(values) - 1).bit_length()) - len(values))
        while len(values) > 1:
            half = len(values) // 2
            values = list(map(self.join, values[:half], values[half:]))
        return values[0]

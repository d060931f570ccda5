"""Source text of reductions, in the order of `_engines/row_column_reductions.py`."""

from __future__ import annotations

from thalweg._engines.formula_source import FUNCTION_PREFIX


class ReductionText:
    """Writer of expressions that reduce values to one value.

    Args:
        reduce: As in `Measure`: "sum" or "largest".
    """

    def __init__(self, reduce: str) -> None:
        self.reduce = reduce

    @property
    def zero(self) -> str:
        """Return the neutral number, with which lanes begin."""
        return "0.0" if self.reduce == "sum" else "-1e999"

    def join(self, first: str, second: str) -> str:
        """Return an expression that reduces two expressions."""
        if self.reduce == "sum":
            return f"({first} + {second})"
        return f"{FUNCTION_PREFIX}maximum({first}, {second})"

    def fold(self, values: list[str]) -> str:
        """Return an expression that reduces values to one, by joining both halves repeatedly."""
        values = values + [self.zero] * ((1 << (len(values) - 1).bit_length()) - len(values))
        while len(values) > 1:
            half = len(values) // 2
            values = list(map(self.join, values[:half], values[half:]))
        return values[0]

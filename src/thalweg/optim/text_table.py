"""Tables of text."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def format_table(rows: Sequence[Sequence[str]], right_aligned: Collection[int] = ()) -> str:
    """Return rows as lines of aligned columns, two spaces apart.

    Args:
        rows: The cells of each row; all rows have equally many.
        right_aligned: Indices of columns to align to the right; all others are left-aligned.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [">" if index in right_aligned else "<" for index in range(len(widths))]
    specs = [f"{side}{width}" for side, width in zip(sides, widths, strict=True)]
    return "\n".join("  ".join(map(format, row, specs)).rstrip() for row in rows)

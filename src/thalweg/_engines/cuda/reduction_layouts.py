"""For which matrices a kernel that measures rows and columns is made."""

from __future__ import annotations

from typing import NamedTuple

from thalweg._engines.cuda.codegen import WARP
from thalweg._engines.row_column_reductions import TILE_COLUMNS, View, places_for

SIDE = 8  # rows and columns of small matrices, at most: kernels have a text for each element


class Layout(NamedTuple):
    """What a kernel that measures is made for.

    Attributes:
        sides: Rows and columns of matrices that have few of both; None for all others.
        columns: Otherwise how many columns a tile has room for.
    """

    sides: tuple[int, int] | None
    columns: int = 0


def layout_of(view: View) -> Layout:
    """The layout of matrices such as those of a variable."""
    if max(view.rows, view.columns) <= SIDE:
        return Layout((view.rows, view.columns))
    return Layout(None, min(max(places_for(view.columns), WARP), TILE_COLUMNS))

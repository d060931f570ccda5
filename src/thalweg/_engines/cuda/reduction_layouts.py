"""Layouts of matrices for kernels that measure rows and columns."""

from __future__ import annotations

from typing import NamedTuple

from thalweg._engines.cuda.codegen import WARP
from thalweg._engines.row_column_reductions import TILE_COLUMNS, View, places_for

# Most rows and columns of small matrices, since their kernels unroll all elements.
SIDE = 8


class Layout(NamedTuple):
    """Shape of matrices that a reducing kernel is generated for.

    Attributes:
        sides: Rows and columns of small matrices; None for larger matrices, cut into tiles.
        columns: Columns of a tile; 0 for small matrices.
    """

    sides: tuple[int, int] | None
    columns: int = 0


def layout_of(view: View) -> Layout:
    """Return the layout for the matrices of a variable."""
    if max(view.rows, view.columns) <= SIDE:
        return Layout((view.rows, view.columns))
    return Layout(None, min(max(places_for(view.columns), WARP), TILE_COLUMNS))

"""What a measure of rows and columns is, to the last bit: the order in which every engine adds up.

A variable of shape (..., rows, columns) is so many matrices, each cut into tiles of `TILE_ROWS`
rows and `TILE_COLUMNS` columns. In a tile the elements of a column are added to +0 one by one.
Those of a row lie in the least power of two of places that holds them, with +0 in the places
beyond; the upper half of the places is added to the lower half until one is left. The sum of a tile
is that of the sums of its columns, likewise. What tiles have of a row, a column or a variable is
added in pairs of neighbours, then their sums are, and so on; one without a neighbour stays as it
is. Largest values need no order. No result is -0, and one that is NaN is a NaN of any payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg._base.pairwise_sum import flush_denormals, join_pairs, pairs_of
from thalweg._base.rule_passes import Measure
from thalweg._engines.array_types import Int64

TILE_ROWS, TILE_COLUMNS = 64, 1024


class View(NamedTuple):
    """A variable as matrices.

    Attributes:
        matrices: How many.
        rows, columns: Of each.
    """

    matrices: int
    rows: int
    columns: int

    @property
    def down(self) -> int:
        """How many tiles lie one below the other."""
        return -(-self.rows // TILE_ROWS)

    @property
    def across(self) -> int:
        """How many lie side by side."""
        return -(-self.columns // TILE_COLUMNS)


def view_of(shape: torch.Size) -> View:
    """The matrices of a variable of this shape, of two dimensions or more."""
    return View(shape[:-2].numel(), shape[-2], shape[-1])


_TILED = {"row": 3, "column": 2, "variable": 1}  # the dimension that tells tiles apart


class TileMeasures:
    """Memory for what tiles of variables have of measures, and what becomes of it.

    Args:
        views: Of the variables.
        measures: The measures.
        device: Where the memory is.

    Attributes:
        targets: (variables, measures) addresses, at which kernels leave what tiles have.
    """

    def __init__(
        self, views: Sequence[View], measures: Sequence[Measure], device: torch.device
    ) -> None:
        self._measures = measures
        self._members_by_view: dict[View, list[int]] = {}
        for index, view in enumerate(views):
            self._members_by_view.setdefault(view, []).append(index)
        self._blocks = [
            [_room_for(measure, view, len(members), device) for measure in measures]
            for view, members in self._members_by_view.items()
        ]
        self.targets: Int64 = np.empty((len(views), len(measures)), np.int64)
        for blocks, members in zip(self._blocks, self._members_by_view.values(), strict=True):
            for number, (block, _) in enumerate(blocks):
                steps = np.arange(len(members)) * (block.stride(0) * block.element_size())
                self.targets[members, number] = block.data_ptr() + steps

    def combine(self, flush: bool) -> list[list[Tensor]]:
        """Of each variable its measures, once kernels have left what tiles have.

        Args:
            flush: Whether denormals are treated as zero.
        """
        tensors_by_variable: list[list[Tensor]] = [[] for _ in self.targets]
        for blocks, members in zip(self._blocks, self._members_by_view.values(), strict=True):
            for measure, (block, pairs) in zip(self._measures, blocks, strict=True):
                join_pairs(pairs, measure.reduce, flush)
                # Of one tile without memory of its own.
                totals = (
                    block.narrow(_TILED[measure.over], 0, 1) + 0.0 if pairs else block.add_(0.0)
                )
                if flush:  # what is of one element was not added up
                    flush_denormals(totals)
                for member, tensor in zip(members, totals.unbind(0), strict=True):
                    tensors_by_variable[member].append(tensor)
        return tensors_by_variable


def _room_for(
    measure: Measure, view: View, count: int, device: torch.device
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Memory for what tiles of so many variables have of a measure, and its `pairs_of`."""
    shapes = {
        "row": (count, view.matrices, view.rows, view.across),
        "column": (count, view.matrices, view.down, view.columns),
        "variable": (count, view.matrices * view.down * view.across, 1, 1),
    }
    memory = torch.empty(shapes[measure.over], dtype=torch.float64, device=device)
    return memory, pairs_of(memory, _TILED[measure.over])


def reduce_lines(values: Tensor, over: str, reduce: str) -> Tensor:
    """A measure of some matrices, of the values of all elements.

    Args:
        values: (matrices, rows, columns) float64, with elements; on any device.
        over, reduce: As those of a `Measure`.

    Returns:
        (matrices, rows, 1), (matrices, 1, columns), or (1, 1, 1), float64.
    """
    view = View(*values.shape)
    missing = 0.0 if reduce == "sum" else -torch.inf
    if over == "row":
        width = view.across * TILE_COLUMNS if view.across > 1 else places_for(view.columns)
        padded = values.new_full((view.matrices, view.rows, width), missing)
        padded[:, :, : view.columns] = values
        tiles = padded.view(view.matrices, view.rows, view.across, -1)
        return combine_tiles(_fold_places(tiles, reduce), 2, reduce)
    partial = _reduce_columns(values, view, reduce)
    if over == "column":
        return combine_tiles(partial, 1, reduce)
    places = TILE_COLUMNS if view.across > 1 else places_for(view.columns)
    padded = values.new_full((view.matrices, view.down, view.across * places), missing)
    padded[:, :, : view.columns] = partial
    tiles = _fold_places(padded.view(view.matrices, view.down, view.across, places), reduce)
    return combine_tiles(tiles.reshape(-1), 0, reduce).view(1, 1, 1)


def combine_tiles(partial: Tensor, dim: int, reduce: str) -> Tensor:
    """What tiles have along a dimension, in one, beside memory that is lost; see `join_pairs`."""
    join_pairs(pairs_of(partial, dim), reduce)
    return partial.narrow(dim, 0, 1) + 0.0


def _reduce_columns(values: Tensor, view: View, reduce: str) -> Tensor:
    """What each row of tiles has of columns: (matrices, down, columns)."""
    parts: list[Tensor] = []
    for first in range(0, view.rows, TILE_ROWS):
        band = values[:, first : first + TILE_ROWS]
        start = 0.0 if reduce == "sum" else -torch.inf
        total = values.new_full((view.matrices, view.columns), start)
        for row in range(band.shape[1]):
            total = _join(total, band[:, row], reduce)
        parts.append(total)
    return torch.stack(parts, 1)


def places_for(count: int) -> int:
    """The least power of two that holds so many."""
    return 1 << (count - 1).bit_length()


def _fold_places(values: Tensor, reduce: str) -> Tensor:
    """The last dimension, a power of two, folded to one; it is dropped."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = _join(values[..., :half], values[..., half:], reduce)
    return values[..., 0]


def _join(a: Tensor, b: Tensor, reduce: str) -> Tensor:
    return a + b if reduce == "sum" else torch.maximum(a, b)

"""Reductions over rows and columns of matrices, tile by tile, in an order that all engines share.

A variable of shape (..., rows, columns) is a batch of matrices. A matrix is cut into tiles of
`TILE_ROWS` rows and `TILE_COLUMNS` columns. In a tile the elements of a column are added to +0 one
by one. The elements of a row are padded with +0 to a power of two; then the upper half is added to
the lower half until one element is left. The sum of a tile folds the sums of its columns in this
way. The partial results of tiles are added in pairs of neighbours, then the sums are added in
pairs, and so on; a result without a neighbour is unchanged. Maxima need no order. No result is -0;
a NaN can have any payload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg._base.pairwise_sum import flush_denormals, join_pairs, pairs_of
from thalweg._base.rule_passes import Measure
from thalweg._engines.array_types import Int64

TILE_ROWS, TILE_COLUMNS = 64, 1024


class View(NamedTuple):
    """Shape of a variable as a batch of matrices.

    Attributes:
        matrices: The number of matrices.
        rows, columns: The shape of a matrix.
    """

    matrices: int
    rows: int
    columns: int

    @property
    def down(self) -> int:
        """Return the number of tiles along a column."""
        return -(-self.rows // TILE_ROWS)

    @property
    def across(self) -> int:
        """Return the number of tiles along a row."""
        return -(-self.columns // TILE_COLUMNS)


def view_of(shape: torch.Size) -> View:
    """Return the matrices of a variable of two dimensions or more."""
    return View(shape[:-2].numel(), shape[-2], shape[-1])


def make_line_rows(
    names: Sequence[str], vectors: Sequence[Mapping[str, Tensor]], views: Sequence[View]
) -> Int64:
    """Return the table of vectors for a kernel: an array of shape (variables, len(names) + 2).

    A row has the addresses of a variable's vectors, in the order of `names`, then the rows and
    columns of a matrix. The table does not keep the vectors alive.

    Args:
        names: The names of vectors.
        vectors: {name: vector} for each variable; may be empty if `names` is.
        views: For each variable its shape as a batch of matrices.
    """
    no_vectors: list[Mapping[str, Tensor]] = [{}] * len(views)
    pairs = zip(vectors or no_vectors, views, strict=True)
    addresses = [[*(x[name].data_ptr() for name in names), y.rows, y.columns] for x, y in pairs]
    return np.array(addresses, np.int64).reshape(len(views), len(names) + 2)


# The dimension of tiles in partial results.
_TILED = {"row": 3, "column": 2, "variable": 1}


class TileMeasures:
    """Memory for the measures of each tile, which kernels write, and the reduction to results.

    Attributes:
        targets: int64 addresses (variables, measures) of the memory for partial results.
    """

    def __init__(
        self, views: Sequence[View], measures: tuple[Measure, ...], device: torch.device
    ) -> None:
        self._measures = measures
        self._members_by_view: dict[View, list[int]] = {}
        for index, view in enumerate(views):
            self._members_by_view.setdefault(view, []).append(index)
        self._blocks = [
            [_allocate_partials(measure, view, len(members), device) for measure in measures]
            for view, members in self._members_by_view.items()
        ]
        self.targets: Int64 = np.empty((len(views), len(measures)), np.int64)
        for blocks, members in zip(self._blocks, self._members_by_view.values(), strict=True):
            for number, (block, _) in enumerate(blocks):
                steps = np.arange(len(members)) * (block.stride(0) * block.element_size())
                self.targets[members, number] = block.data_ptr() + steps

    def combine(self, flush: bool) -> list[list[Tensor]]:
        """Return [tensor per measure] for each variable; overwrite the partial results.

        Args:
            flush: True to treat denormals as zero.
        """
        tensors_by_variable: list[list[Tensor]] = [[] for _ in self.targets]
        for blocks, members in zip(self._blocks, self._members_by_view.values(), strict=True):
            for measure, (block, pairs) in zip(self._measures, blocks, strict=True):
                join_pairs(pairs, measure.reduce, flush)
                # The addition of +0 removes -0. With a single tile the result is `block` itself.
                totals = (
                    block.narrow(_TILED[measure.over], 0, 1) + 0.0 if pairs else block.add_(0.0)
                )
                # Values of a single element have not been through an addition that flushes.
                if flush:
                    flush_denormals(totals)
                for member, tensor in zip(members, totals.unbind(0), strict=True):
                    tensors_by_variable[member].append(tensor)
        return tensors_by_variable


def _allocate_partials(
    measure: Measure, view: View, count: int, device: torch.device
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Allocate partial results of `count` variables; return (memory, pairs for `join_pairs`)."""
    shapes = {
        "row": (count, view.matrices, view.rows, view.across),
        "column": (count, view.matrices, view.down, view.columns),
        "variable": (count, view.matrices * view.down * view.across, 1, 1),
    }
    memory = torch.empty(shapes[measure.over], dtype=torch.float64, device=device)
    return memory, pairs_of(memory, _TILED[measure.over])


def reduce_lines(values: Tensor, over: str, reduce: str) -> Tensor:
    """Reduce the values of all elements over rows, columns or the whole variable.

    Args:
        values: (matrices, rows, columns) float64, not empty; on any device.
        over, reduce: The attributes of a `Measure`.

    Returns:
        float64 (matrices, rows, 1), (matrices, 1, columns) or (1, 1, 1), depending on `over`.
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
    lane_count = TILE_COLUMNS if view.across > 1 else places_for(view.columns)
    padded = values.new_full((view.matrices, view.down, view.across * lane_count), missing)
    padded[:, :, : view.columns] = partial
    tiles = _fold_places(padded.view(view.matrices, view.down, view.across, lane_count), reduce)
    return combine_tiles(tiles.reshape(-1), 0, reduce).view(1, 1, 1)


def combine_tiles(partial: Tensor, dim: int, reduce: str) -> Tensor:
    """Return a new tensor with partial results reduced along `dim`; overwrite `partial`."""
    join_pairs(pairs_of(partial, dim), reduce)
    return partial.narrow(dim, 0, 1) + 0.0


def _reduce_columns(values: Tensor, view: View, reduce: str) -> Tensor:
    """Reduce the columns of each tile; return (matrices, tiles along a column, columns)."""
    totals: list[Tensor] = []
    for first in range(0, view.rows, TILE_ROWS):
        band = values[:, first : first + TILE_ROWS]
        start = 0.0 if reduce == "sum" else -torch.inf
        total = values.new_full((view.matrices, view.columns), start)
        for row in range(band.shape[1]):
            total = _join(total, band[:, row], reduce)
        totals.append(total)
    return torch.stack(totals, 1)


def places_for(count: int) -> int:
    """Return the least power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


def _fold_places(values: Tensor, reduce: str) -> Tensor:
    """Reduce the last dimension, a power of two, by joining the upper and lower half repeatedly."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = _join(values[..., :half], values[..., half:], reduce)
    return values[..., 0]


def _join(a: Tensor, b: Tensor, reduce: str) -> Tensor:
    return a + b if reduce == "sum" else torch.maximum(a, b)

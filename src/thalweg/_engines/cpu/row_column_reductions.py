"""Reductions over rows, columns and variables on the CPU, in one pass over tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from thalweg._base.rule_passes import Measure
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.cpu.codegen_row_column import WIDE
from thalweg._engines.cpu.launch import Compiled
from thalweg._engines.cpu.reductions import MeasureLaunch
from thalweg._engines.row_column_reductions import (
    TILE_COLUMNS,
    TILE_ROWS,
    TileMeasures,
    View,
    make_line_rows,
    view_of,
)

_SLICE = 1 << 16  # elements that a thread takes at a time


class Lines:
    """Division of nonempty variables into tiles, for reductions of rows and columns in all steps.

    Args:
        shapes: The shapes of the variables.
        vectors: For each variable {name: tensor over rows or columns that formulas read}.

    Attributes:
        elements: The number of elements of all variables.
        slices: (slices, 3) the tiles that a thread takes at a time; see `_cut_tiles`.
        sizes: (variables, 5): matrices, rows, columns, tiles per column, tiles per row.
    """

    def __init__(
        self, shapes: Sequence[torch.Size], vectors: Sequence[Mapping[str, Tensor]]
    ) -> None:
        self._views, self._vectors = list(map(view_of, shapes)), vectors
        self._bases: dict[tuple[str, ...], Int64] = {}
        # Memory for tile results, and the columns of the table after the addresses of streams.
        self._buffers: dict[tuple[Measure, ...], tuple[TileMeasures, Int64]] = {}
        self.elements = sum(shape.numel() for shape in shapes)
        sizes = [(*view, view.down, view.across) for view in self._views]
        self.sizes = np.array(sizes, np.int64).reshape(-1, 5)
        self.slices = np.concatenate(
            [_cut_tiles(index, view) for index, view in enumerate(self._views)]
        )

    def base_of(self, names: Sequence[str]) -> Int64:
        """Return (variables, names + 2): addresses of vectors, rows and columns of matrices."""
        key = tuple(names)
        # Vectors are never reallocated, so that their addresses can be cached.
        if key not in self._bases:
            self._bases[key] = make_line_rows(key, self._vectors, self._views)
        return self._bases[key]

    def buffers_for(
        self, kernel: Compiled, measures: tuple[Measure, ...]
    ) -> tuple[TileMeasures, Int64]:
        """Return memory for the results of tiles, and the constant columns of the kernel's table.

        Both results are cached by `measures`.
        """
        if measures not in self._buffers:
            tiles = TileMeasures(self._views, measures, torch.device("cpu"))
            vectors = self.base_of(kernel.vectors)
            fixed_columns = np.hstack([vectors, self.sizes[:, 3:], tiles.targets])
            self._buffers[measures] = tiles, fixed_columns
        return self._buffers[measures]


class LineSweep(MeasureLaunch):
    """Kernel that reduces tiles of variables, bound to its arguments.

    Args:
        lines: The tiles.
        kernel: From `launch.lines_kernel`.
        measures: The measures.
        arrays: Two arrays: (variables, streams) addresses, whose memory the caller keeps alive, and
            the result of `scalar_rows`.
        flush: True if denormals count as zero.

    Attributes:
        tiles: The results of tiles, in memory that sweeps over equal measures share.
        base: (variables, ...) addresses; the first columns are copied from `arrays`.
    """

    def __init__(
        self,
        lines: Lines,
        kernel: Compiled,
        measures: tuple[Measure, ...],
        arrays: tuple[Int64, Float64],
        flush: bool,
    ) -> None:
        (streams, rows), self._flush = arrays, flush
        self.tiles, fixed_columns = lines.buffers_for(kernel, measures)
        self.base = np.concatenate((streams, fixed_columns), axis=1)
        # Word 3 has the bounds of slices in other kernels; here each row of `slices` is one.
        block = [0, len(lines.slices), flush, 0, lines.slices.ctypes.data, self.base.ctypes.data]
        super().__init__(kernel, rows, lines.elements, block)

    def combine(self) -> list[list[Tensor]]:
        """Return a list of results per variable, in memory that the next launch reuses."""
        return self.tiles.combine(self._flush)


def _cut_tiles(index: int, view: View) -> Int64:
    """Divide the tiles of a variable into slices; a thread takes one slice at a time.

    A band is a row of tiles. A slice has several bands, one band, or a part of a band.

    Returns:
        (slices, 3) int64: the index of the variable, the first tile, and the end of the tiles.
    """
    bands, pieces = view.matrices * view.down, -(-view.across // WIDE)
    size = min(view.rows, TILE_ROWS) * min(view.columns, TILE_COLUMNS)
    step = 1 if pieces > 1 else max(1, _SLICE // (size * view.across))
    side = np.arange(pieces, dtype=np.int64) * view.across // pieces
    first = (np.arange(0, bands, step, dtype=np.int64)[:, None] * view.across + side).reshape(-1)
    end = np.append(first[1:], bands * view.across)
    return np.stack([np.full_like(first, index), first, end], axis=1)

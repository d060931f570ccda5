"""Reductions over rows, columns and variables on the CPU, in one pass over tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.rule_passes import Measure
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.cpu.codegen_row_column import WIDE
from thalweg._engines.cpu.launch import Compiled
from thalweg._engines.cpu.reductions import MeasureLaunch, scalar_rows
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
    """Tiles of a set of variables, none empty; made once, used in each step.

    Args:
        vectors: Tensors over rows and columns that formulas read, by name, for each variable.

    Attributes:
        elements: The number of elements of all variables.
        slices: The tiles that threads take at a time.
        sizes: For each variable matrices, rows, columns, and tiles along a column and a row.
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
        """Return addresses of vectors, and rows and columns of matrices: (variables, names + 2)."""
        key = tuple(names)
        # Vectors are never reallocated, so that their addresses can be cached.
        if key not in self._bases:
            self._bases[key] = make_line_rows(key, self._vectors, self._views)
        return self._bases[key]

    def buffers_for(
        self, kernel: Compiled, measures: tuple[Measure, ...]
    ) -> tuple[TileMeasures, Int64]:
        """Return memory for tile results, and the table's columns after the addresses of streams.

        Both are cached by `measures`: new memory would cause page faults in each step.
        """
        if measures not in self._buffers:
            tiles = TileMeasures(self._views, measures, torch.device("cpu"))
            vectors = self.base_of(kernel.vectors)
            fixed_columns = np.hstack([vectors, self.sizes[:, 3:], tiles.targets])
            self._buffers[measures] = tiles, fixed_columns
        return self._buffers[measures]

    def measure(
        self,
        kernel: Compiled,
        measures: tuple[Measure, ...],
        streams: Int64,
        scalars: Mapping[str, Any],
        flush: bool,
    ) -> list[list[Tensor]]:
        """Return the measures of each variable, in memory that the next call overwrites.

        Args:
            kernel, measures, streams, flush: As for `LineSweep`.
            scalars: The scalars by name: a number for all variables, or an array of one for each.
        """
        rows = scalar_rows(kernel.scalars, scalars)
        sweep = LineSweep(self, kernel, measures, (streams, rows), flush)
        kernel.run_on_threads(sweep.address, sweep.threads())
        return sweep.tiles.combine(flush)


class LineSweep(MeasureLaunch):
    """Measuring kernel over tiles with its argument block.

    Args:
        lines: The tiles.
        kernel: From `launch.lines_kernel`.
        measures: The measures.
        arrays: (variables, streams) addresses, whose memory the caller keeps alive, and the result
            of `scalar_rows`.
        flush: True if denormals count as zero.

    Attributes:
        tiles: The results of tiles, in memory that sweeps over the same measures share.
        base: (variables, ...) addresses; the first columns are those of `arrays`.
    """

    def __init__(
        self,
        lines: Lines,
        kernel: Compiled,
        measures: tuple[Measure, ...],
        arrays: tuple[Int64, Float64],
        flush: bool,
    ) -> None:
        streams, rows = arrays
        self.tiles, fixed_columns = lines.buffers_for(kernel, measures)
        self.base = np.concatenate((streams, fixed_columns), axis=1)
        block = [0, len(lines.slices), flush, 0, lines.slices.ctypes.data, self.base.ctypes.data]
        super().__init__(kernel, rows, lines.elements, block)


def _cut_tiles(index: int, view: View) -> Int64:
    """Return the slices of a variable's tiles that a thread takes at once.

    The tiles of a band, which has `TILE_ROWS` rows, are in one slice, or in a few, so that memory
    is read in order.

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

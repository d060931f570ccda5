"""Measures of rows, columns and variables on the CPU: one sweep over tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg.engines.arrays import Int64
from thalweg.engines.cpu import launch
from thalweg.engines.cpu.codegen_lines import WIDE
from thalweg.engines.cpu.launch import Compiled
from thalweg.engines.cpu.measure import scalar_rows
from thalweg.engines.lines import TILE_COLUMNS, TILE_ROWS, TileMeasures, View, view_of
from thalweg.ground.passes import Measure

_SLICE = 1 << 16  # elements that a thread takes at a time


class _Room(NamedTuple):
    """What a kernel of measures is given, and where it leaves what tiles have.

    Attributes:
        tiles: What has the memory there.
        base: Of each variable where its streams and vectors begin, sides, tiles, and where measures
            go.
        block: The argument.
        address: That of the argument.
    """

    tiles: TileMeasures
    base: Int64
    block: Int64
    address: int


class Lines:
    """Rows and columns of a set of variables with elements; made once, used in each step.

    Args:
        shapes: Of the variables.
        vectors: What formulas are given of rows and columns of each, by name.
    """

    def __init__(
        self, shapes: Sequence[torch.Size], vectors: Sequence[Mapping[str, Tensor]]
    ) -> None:
        self._views, self._vectors = list(map(view_of, shapes)), vectors
        self._bases: dict[tuple[str, ...], Int64] = {}
        self._rooms: dict[tuple[Compiled, tuple[Measure, ...]], _Room] = {}
        self._elements = sum(shape.numel() for shape in shapes)
        self._sides = np.array([(view.rows, view.columns) for view in self._views], np.int64)
        self._tiles = np.array([(view.down, view.across) for view in self._views], np.int64)
        self._slices = np.concatenate(
            [_cut_tiles(index, view) for index, view in enumerate(self._views)]
        )

    def base_of(self, names: Sequence[str]) -> Int64:
        """Where vectors begin, and the sides of matrices: (variables, names + 2)."""
        key = tuple(names)
        if key not in self._bases:  # vectors stay where they are
            places = [[own[name].data_ptr() for name in names] for own in self._vectors]
            found = np.array(places, np.int64).reshape(len(self._views), len(names))
            self._bases[key] = np.hstack([found, self._sides])
        return self._bases[key]

    def _room_for(self, kernel: Compiled, measures: tuple[Measure, ...], streams: int) -> _Room:
        """Memory that stays, as that of a step anew has a computer fetch pages for it."""
        key = kernel, measures
        if key not in self._rooms:
            tiles = TileMeasures(self._views, measures)
            own = [self.base_of(kernel.vectors), self._tiles, tiles.targets]
            base = np.hstack([np.zeros((len(self._views), streams), np.int64), *own])
            block = np.zeros(8, np.int64)
            block[1], block[4] = len(self._slices), self._slices.ctypes.data
            block[5] = base.ctypes.data
            self._rooms[key] = _Room(tiles, base, block, block.ctypes.data)
        return self._rooms[key]

    def measure(
        self,
        kernel: Compiled,
        measures: Sequence[Measure],
        streams: Int64,
        scalars: Mapping[str, Any],
        flush: bool,
    ) -> list[list[Tensor]]:
        """Of each variable its measures, in memory that the next ones of these are in, too.

        Args:
            kernel: From `launch.lines_kernel`.
            measures: The measures.
            streams: (variables, streams) addresses; whoever calls keeps that memory alive.
            scalars: The kernel's by name: a number for all variables, or an array of one for each.
            flush: Whether denormals count as zero.
        """
        room = self._room_for(kernel, tuple(measures), streams.shape[1])
        room.base[:, : streams.shape[1]] = streams
        rows, block = scalar_rows(kernel.scalars, scalars), room.block
        block[0], block[2] = 0, flush
        block[6], block[7] = rows.shape[1] if len(rows) > 1 else 0, rows.ctypes.data
        threads = launch.threads_for(len(self._slices), self._elements)
        kernel.run_on_threads(room.address, threads)
        return room.tiles.combine(flush)


def _cut_tiles(index: int, view: View) -> Int64:
    """The tiles of a variable, in slices: (slices, 3): variable, first tile, end.

    Those side by side are in one slice, or in few, so that memory is read in its order.
    """
    bands, pieces = view.matrices * view.down, -(-view.across // WIDE)
    size = min(view.rows, TILE_ROWS) * min(view.columns, TILE_COLUMNS)
    step = 1 if pieces > 1 else max(1, _SLICE // (size * view.across))
    side = np.arange(pieces, dtype=np.int64) * view.across // pieces
    first = (np.arange(0, bands, step, dtype=np.int64)[:, None] * view.across + side).reshape(-1)
    end = np.append(first[1:], bands * view.across)
    return np.stack([np.full_like(first, index), first, end], axis=1)

"""Measures of rows and columns of variables on a GPU, and tables of their addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg._base.lazy import lazy
from thalweg._base.rule_passes import Measure
from thalweg._engines.array_types import enumerate_runs
from thalweg._engines.cuda.codegen import THREADS
from thalweg._engines.cuda.codegen_partial_reductions import Layout, layout_of
from thalweg._engines.cuda.host_device_mirror import send_constant
from thalweg._engines.cuda.launch import Compiled
from thalweg._engines.row_column_reductions import TileMeasures, make_line_rows, view_of


class _Workspace(NamedTuple):
    """Device table of reducing kernels, and the memory of their partial results.

    Attributes:
        table: A row per variable: addresses of vectors; rows and columns; numbers of tiles down and
            across; addresses of results. Small matrices have their count in place of tiles down.
        tiles: The partial results of tiles; `table` has their addresses.
    """

    table: Tensor
    tiles: TileMeasures


class Lines:
    """Measurement of rows and columns of non-empty variables; created once, used in each step.

    Args:
        vectors: For each variable {name: row or column vector that formulas read}.
    """

    def __init__(
        self,
        shapes: Sequence[torch.Size],
        vectors: Sequence[Mapping[str, Tensor]],
        device: torch.device,
    ) -> None:
        self._views, self._vectors, self._device = list(map(view_of, shapes)), vectors, device
        self._layouts = list(map(layout_of, self._views))
        self._tables: dict[tuple[str, ...], Tensor] = {}
        self._workspaces: dict[tuple[Compiled, ...], _Workspace] = {}

    @lazy
    def _chunks(self) -> dict[Layout, Tensor]:
        """Return {layout: tensor (programs, 2)}: a variable's and a tile's index per program.

        Small matrices have no tiles; the second index is that of a group of `THREADS` matrices.
        """
        layout_chunks: dict[Layout, Tensor] = {}
        for layout in dict.fromkeys(self._layouts):
            indices = [
                index
                for index, variable_layout in enumerate(self._layouts)
                if variable_layout == layout
            ]
            views = [self._views[index] for index in indices]
            if layout.sides:
                counts = [-(-view.matrices // THREADS) for view in views]
            else:
                counts = [view.matrices * view.down * view.across for view in views]
            tensor, tile = enumerate_runs(np.array(counts, np.int64))
            chunks = np.stack([np.array(indices)[tensor], tile], axis=1)
            layout_chunks[layout] = send_constant(chunks, np.int32, self._device)
        return layout_chunks

    def table_of(self, names: tuple[str, ...]) -> Tensor:
        """Return a device table with the addresses of vectors and the sides of matrices; cached."""
        # Cached, since vectors are never reallocated.
        if names not in self._tables:
            self._tables[names] = send_constant(
                make_line_rows(names, self._vectors, self._views), np.int64, self._device
            )
        return self._tables[names]

    def _make_workspace(self, kernel: Compiled, measures: tuple[Measure, ...]) -> _Workspace:
        """Allocate memory for partial results, and a table on the device with its addresses."""
        tile_measures = TileMeasures(self._views, measures, self._device)
        pairs = zip(self._views, self._layouts, strict=True)
        tiles = [(x.matrices if layout.sides else x.down, x.across) for x, layout in pairs]
        table = np.hstack(
            [
                make_line_rows(kernel.vectors, self._vectors, self._views),
                np.array(tiles, np.int64),
                tile_measures.targets,
            ]
        )
        return _Workspace(send_constant(table, np.int64, self._device), tile_measures)

    def kernels(self, kernel_for: Callable[[Layout], Compiled]) -> tuple[Compiled, ...]:
        """Return `kernel_for(layout)` for each layout of the variables."""
        return tuple(map(kernel_for, self._chunks))

    def measure(
        self,
        kernels: tuple[Compiled, ...],
        measures: tuple[Measure, ...],
        base: Tensor,
        scalars: tuple[Tensor, Tensor],
        flush: bool,
    ) -> list[list[Tensor]]:
        """Return for each variable a tensor per measure, without waiting for the device.

        Args:
            kernels: From `Lines.kernels`.
            base: (variables, streams) addresses.
            scalars: The index of each variable's row of scalars, and the rows.
            flush: True to treat denormals as zero.
        """
        workspace = self._workspaces.get(kernels)
        if workspace is None:
            # All kernels read equal vectors, and so one table.
            workspace = self._workspaces[kernels] = self._make_workspace(kernels[0], measures)
        for kernel, chunks in zip(kernels, self._chunks.values(), strict=True):
            arguments = (base, chunks, workspace.table, *scalars)
            # Pointers of these kernels are never aligned.
            kernel.bind_to((len(chunks), 1), arguments, False).run()
        return workspace.tiles.combine(flush)

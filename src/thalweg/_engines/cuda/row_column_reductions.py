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
from thalweg._engines.cuda.host_device_mirror import send_constant
from thalweg._engines.cuda.launch import Compiled
from thalweg._engines.cuda.reduction_layouts import Layout, layout_of
from thalweg._engines.row_column_reductions import TileMeasures, make_line_rows, view_of


class _Workspace(NamedTuple):
    """Device table of measuring kernels, and the memory of their partial results.

    Attributes:
        table: For each variable addresses of vectors, sides, numbers of tiles down and across, and
            addresses of results; for small matrices their number in place of tiles down.
        tiles: The partial results of tiles, which the table points at.
    """

    table: Tensor
    tiles: TileMeasures


class Lines:
    """Rows and columns of a set of non-empty variables; created once, used in each step.

    Args:
        vectors: For each variable the row and column vectors that formulas read, by name.
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
        """Return for each layout a tensor (programs, 2) of variable indices and tile indices.

        Small matrices are numbered by groups of `THREADS` instead of tiles.
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
        """Return addresses of vectors and sides of matrices as a tensor on the device."""
        # Cached, since vectors are never reallocated.
        if names not in self._tables:
            self._tables[names] = send_constant(
                make_line_rows(names, self._vectors, self._views), np.int64, self._device
            )
        return self._tables[names]

    def _make_workspace(self, kernel: Compiled, measures: tuple[Measure, ...]) -> _Workspace:
        """Allocate memory of partial results; return it with the table that points at it."""
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
        """Return the kernel of each layout; all read the same scalars and vectors."""
        return tuple(map(kernel_for, self._chunks))

    def measure(
        self,
        kernels: tuple[Compiled, ...],
        measures: tuple[Measure, ...],
        base: Tensor,
        scalars: tuple[Tensor, Tensor],
        flush: bool,
    ) -> list[list[Tensor]]:
        """Return the measures of each variable as tensors, without waiting for the device.

        Args:
            kernels: From `kernels`.
            base: (variables, streams) addresses.
            scalars: Each variable's index of a scalar row, and the scalar rows.
            flush: Whether denormals are treated as zero.
        """
        workspace = self._workspaces.get(kernels)
        if workspace is None:
            workspace = self._workspaces[kernels] = self._make_workspace(kernels[0], measures)
        for kernel, chunks in zip(kernels, self._chunks.values(), strict=True):
            arguments = (base, chunks, workspace.table, *scalars)
            kernel.bind_to((len(chunks), 1), arguments, False).run()
        return workspace.tiles.combine(flush)

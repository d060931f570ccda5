"""Groups of CPU variables with equal storage types, updated by one kernel over one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.lazy import lazy
from thalweg._base.locks import importing
from thalweg._engines.array_types import Int64
from thalweg._engines.codegen import distinct_formulas
from thalweg._engines.cpu import launch
from thalweg._engines.cpu.launch import Compiled
from thalweg._engines.cpu.work_table import (
    Table,
    choose_chunk_size,
    cut_at_runs,
    cut_slices,
    dense_chunks,
)
from thalweg._engines.kernel_streams import Streams, streams_of
from thalweg._engines.protocol import (
    Call,
    Columns,
    Formulas,
    Reduction,
    Results,
    Scalars,
    Stages,
    StepRequest,
)
from thalweg._engines.random_bits import UNCOUNTED

if TYPE_CHECKING:
    from thalweg._engines.cpu.offsets import Layout, Offsets
    from thalweg._engines.cpu.reductions import Leaves, Sweep
    from thalweg._engines.cpu.row_column_reductions import Lines, LineSweep


class Group:
    """Variables (members) that one kernel updates; implements `dense_plan.Group` on the CPU.

    Args:
        members: Positions of the group's variables in the request.
    """

    device = None

    def __init__(self, request: StepRequest, members: list[int]) -> None:
        streams = self._set_members(request, members)
        update = streams.describe_update(request)
        self.kernel = launch.update_kernel(update, streams.compute)
        self._kinds = update.vectors
        self._shapes = [request.variables[i].shape for i in members]
        self._vectors = [request.vectors[i] for i in members] if request.vectors else []
        chunk = choose_chunk_size(sum(streams.sizes))
        chunks, rows = dense_chunks(streams.sizes, chunk), np.zeros(len(members), np.int64)
        base = streams.base
        if streams.positions:
            chunks, self._positions = cut_at_runs(chunks, base[:, -1], streams.runs)
            # In place of one position, kernels read an array with the position of each chunk.
            base[:, -1] = self._positions.ctypes.data
        if self.kernel.vectors:
            base = np.hstack([base, self.lines.base_of(self.kernel.vectors)])
        self.table = Table(base, chunks, cut_slices(chunks, chunk), rows)
        self.scalars = np.zeros((1, len(self.kernel.scalars)), self.dtype)

    def _set_members(self, request: StepRequest, members: list[int]) -> Streams:
        """Set the attributes that depend on the members; return the `Streams` of their tensors."""
        streams = streams_of(request, members)
        self.dtype = streams.compute
        self.flush = request.selection.denormals == "flush"
        self._gradient = streams.gradient
        self._memory = streams.describe_memory(streams.measured_types)
        self.members = members
        self.has_all_variables = len(members) == len(request.variables)
        self._sizes, self.bytes = streams.sizes, streams.bytes
        variables = [request.variables[i] for i in members]
        self._layouts: list[Layout] = []
        if not all(map(Tensor.is_contiguous, variables)):
            self._layouts = [(tuple(var.shape), var.stride()) for var in variables]
        self._rows = np.arange(len(members), dtype=np.int64)
        return streams

    @lazy
    def _offsets(self) -> Offsets | None:
        """Offset tables of the members' elements; None if all members are row-major."""
        if not self._layouts:
            return None
        with importing:
            from thalweg._engines.cpu.offsets import Offsets
        return Offsets(self._layouts)

    @property
    def measures_in_place(self) -> bool:
        """True if kernels read members for measures directly, without a row-major copy."""
        return self._offsets is None or self._offsets.are_compact

    @lazy
    def _leaves(self) -> Leaves:
        with importing:
            from thalweg._engines.cpu.reductions import Leaves
        return Leaves(self._sizes, self._offsets)

    @lazy
    def lines(self) -> Lines:
        """Measures over rows and columns of the members."""
        with importing:
            from thalweg._engines.cpu.row_column_reductions import Lines
        return Lines(self._shapes, self._vectors)

    def _reduce_lines(self, reduction: Reduction, columns: Columns) -> list[list[Tensor]]:
        """Compute measures over rows, columns or all elements; return a list for each member."""
        sweep = self.line_sweep(reduction.formulas, reduction.stages, self.table.base, columns)
        sweep.run()
        return sweep.combine()

    def line_sweep(
        self, measures: Any, stages: Stages, base: Int64, columns: Columns | None = None
    ) -> LineSweep:
        """Return a `LineSweep`; its `run` measures rows, columns or all elements of members.

        Args:
            measures, stages: As in `Reduction`.
            base: (members, ...) addresses of tensors, in the columns of `Table.base`. Copied.
            columns: The scalars of the step. Without them, each member has a row of scalars, which
                are 0 until set.
        """
        with importing:
            from thalweg._engines.cpu.reductions import scalar_rows
            from thalweg._engines.cpu.row_column_reductions import LineSweep
        formulas = distinct_formulas(measures)
        measurement = replace(self._memory, formulas=formulas, stages=stages, vectors=self._kinds)
        kernel = launch.lines_kernel(measures, measurement)
        rows = np.zeros((len(self.members), len(kernel.scalars)))
        if columns is not None:
            rows = scalar_rows(kernel.scalars, self._select_scalars(kernel.scalars, columns))
        arrays = base[:, : len(self._memory.storage)], rows
        # Only stages flush denormals; without stages, measures read the stored numbers.
        return LineSweep(self.lines, kernel, measures, arrays, self.flush and bool(stages))

    @property
    def update_launch(self) -> tuple[Compiled, Table]:
        """The kernel of the update, and its work table, for a replay."""
        return self.kernel, self.table

    def point_at(self, addresses: Int64) -> None:
        """Set the addresses of this step's gradients, one per member."""
        self.table.base[:, 1] = addresses

    def set_scalars(self, shared: Scalars, by_variable: Any) -> None:
        """Fill `self.scalars`: one row, or a row for each member if scalars differ by variable.

        Args:
            shared: {name: number} of the group's compute dtype.
            by_variable: {name: array over the plan's variables}, for scalars that differ.
        """
        # A step without a number rounds codes to the nearest.
        names, shared = self.kernel.scalars, {**UNCOUNTED, **shared}
        if by_variable.keys().isdisjoint(names):
            self.scalars[:] = [shared[name] for name in names]
            return
        if len(self.scalars) != len(self.members):
            self.scalars = np.zeros((len(self.members), len(names)), self.dtype)
            self.table.scalar_row[:] = self._rows
        for column, name in enumerate(names):
            scalar = by_variable[name][self.members] if name in by_variable else shared[name]
            self.scalars[:, column] = scalar

    @property
    def positions(self) -> Tensor:
        return torch.tensor(self.members, dtype=torch.int64, device="cpu")

    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        """Compute a reduction with the scalars in `columns`; return the results, on the host."""
        if reduction.kind == "peaks":
            with importing:
                from thalweg._engines.cpu.reductions import table_peaks
            return table_peaks(self.table, self._gradient, 1)
        if reduction.kind == "measures":
            return self._reduce_lines(reduction, columns)
        kernel = self._sum_kernel(reduction.formulas, reduction.stages)
        scalars, flush = self._select_scalars(kernel.scalars, columns), self.flush
        leaves = self._leaves.measure(
            kernel, self.table.base, scalars, flush and bool(reduction.stages)
        )
        if reduction.kind == "sums":
            return self._leaves.combine(leaves)
        return np.split(leaves, np.cumsum(self._leaves.counts)[:-1])

    def _sum_kernel(self, formulas: Formulas, stages: Stages) -> Compiled:
        """Return the kernel that sums formulas over the members without copies."""
        measurement = replace(self._memory, formulas=tuple(formulas), stages=stages)
        return launch.sum_kernel(measurement, bool(self._layouts))

    def _select_scalars(self, names: Sequence[str], columns: Columns) -> dict[str, Any]:
        """Return {name: scalar}: a number for all members, or an array with one for each."""
        shared, by_variable = columns.shared.get(self.dtype, {}), columns.by_variable
        return {
            name: by_variable[name][self.members] if name in by_variable else shared[name]
            for name in names
        }

    def sweep(self, formulas: Formulas, stages: Stages, base: Int64, rows: int = 1) -> Sweep:
        """Return a `Sweep`; its `run` sums formulas over memory. Scalars are 0 until set.

        Args:
            formulas, stages: As in `Reduction`.
            base: (members, streams) contiguous addresses, in the columns of `Table.base`. Kept.
            rows: The number of rows of scalars: 1, or the number of members.
        """
        with importing:
            from thalweg._engines.cpu.reductions import Sweep
        kernel = self._sum_kernel(formulas, stages)
        scalars = np.zeros((rows, len(kernel.scalars)))
        return Sweep(self._leaves, kernel, base, scalars, self.flush and bool(stages))

    def make_calls(self, columns: Columns) -> list[Call]:
        """Return C functions that launch the update kernel with these scalars."""
        self.set_scalars(columns.shared[self.dtype], columns.by_variable)
        return [self.kernel.bind_table(self.table, self.scalars, self.flush)]

"""Variables of one storage signature on the CPU: one kernel, one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from thalweg.engines.arrays import Float64, Int64
from thalweg.engines.cpu import launch
from thalweg.engines.cpu.work import Table, chunk_of, cut_slices, dense_chunks, make_table
from thalweg.engines.engine import Call, Columns, Formulas, Request, Scalars, Stages
from thalweg.engines.streams import streams_of
from thalweg.ground.lazily import lazy
from thalweg.ground.locks import importing

if TYPE_CHECKING:
    from thalweg.engines.cpu.measure import Leaves, Sweep


class Group:
    """See `thalweg.engines.plan.Group`.

    Args:
        asked: The step.
        members: Positions of these variables in it.
    """

    def __init__(self, asked: Request, members: list[int]) -> None:
        own = streams_of(asked, members)
        self.dtype = own.compute
        self.kernel = launch.update_kernel(
            asked.rule.update,
            asked.stages,
            own.names,
            own.compute,
            copy=own.copied,
            before=asked.rule.before,
            from_copy=own.from_copy,
            draws=own.draws,
        )
        self.flush = asked.selection.denormals == "flush"
        self._gradient, self._measurable = own.gradient, own.measured_types
        self._from_copy = own.from_copy
        self.members = members
        self.whole = len(members) == len(asked.variables)
        self._sizes, self.bytes = own.sizes, own.bytes
        chunk = chunk_of(sum(own.sizes))
        chunks, rows = dense_chunks(own.sizes, chunk), np.zeros(len(members), np.int64)
        self.table = make_table(own.base, chunks, cut_slices(chunks, chunk), rows)
        self.scalars = np.zeros((1, len(self.kernel.scalars)), self.dtype)
        self._rows = np.arange(len(members), dtype=np.int64)

    @lazy
    def _leaves(self) -> Leaves:
        with importing:
            from thalweg.engines.cpu.measure import Leaves
        return Leaves(self._sizes)

    @lazy
    def _measure_peaks(self) -> Callable[[Table, torch.dtype, int], Float64]:
        with importing:
            from thalweg.engines.cpu.measure import table_peaks
        return table_peaks

    def point_at(self, addresses: Int64) -> None:
        """Set the addresses of this step's gradients, one per member."""
        self.table.base[:, 1] = addresses

    def _set_scalars(self, shared: Scalars, separate: Any) -> None:
        """Fill the scalar rows.

        Args:
            shared: Scalars of the group's compute dtype.
            separate: Scalars that differ by variable, an array over the plan's variables each.
        """
        names = self.kernel.scalars
        if separate.keys().isdisjoint(names):
            self.scalars[:] = [shared[name] for name in names]
            return
        if len(self.scalars) != len(self.members):
            self.scalars = np.zeros((len(self.members), len(names)), self.dtype)
            self.table.scalar_row[:] = self._rows
        for column, name in enumerate(names):
            value = separate[name][self.members] if name in separate else shared[name]
            self.scalars[:, column] = value

    def compute_sums(self, formulas: Formulas, stages: Stages, columns: Columns) -> Float64:
        """For each member the sums of formulas over its elements: (members, formulas)."""
        return self._leaves.combine(self._measure_leaves(formulas, stages, columns))

    def positions(self) -> Tensor:
        """See `thalweg.engines.plan.Group`."""
        return torch.tensor(self.members)

    def sums_on_device(self, formulas: Formulas, stages: Stages, columns: Columns) -> None:
        """See `thalweg.engines.plan.Group`: the host is where they are."""

    def compute_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> list[Float64]:
        """What is added up to them: (leaves, formulas) for each member."""
        return self._leaves.split_by_tensor(self._measure_leaves(formulas, stages, columns))

    def _measure_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> Float64:
        kernel = launch.sum_kernel(formulas, stages, self._measurable, self.dtype, self._from_copy)
        shared, separate = columns.shared.get(self.dtype, {}), columns.separate
        scalars = {
            name: separate[name][self.members] if name in separate else shared[name]
            for name in kernel.scalars
        }
        return self._leaves.measure(kernel, self.table.base, scalars, self.flush and bool(stages))

    def sweep(self, formulas: Formulas, stages: Stages, base: Int64, rows: int = 1) -> Sweep:
        """What measures gradients at other addresses again and again, with scalars to be set.

        Args:
            formulas, stages: As in `compute_sums`.
            base: (members, streams) contiguous addresses, as those of the table.
            rows: Of scalars: one, or one for each member.
        """
        with importing:
            from thalweg.engines.cpu.measure import Sweep
        kernel = launch.sum_kernel(formulas, stages, self._measurable, self.dtype, self._from_copy)
        scalars = np.zeros((rows, len(kernel.scalars)))
        return Sweep(self._leaves, kernel, base, scalars, self.flush and bool(stages))

    def max_abs(self) -> Float64:
        """Largest magnitude of each member's gradient."""
        return self._measure_peaks(self.table, self._gradient, 1)

    def max_abs_on_device(self, wanted: Tensor) -> None:
        """See `thalweg.engines.plan.Group`: the host is where they are."""

    def make_calls(self, columns: Columns) -> list[Call]:
        """What launches the kernel, as functions in C."""
        self._set_scalars(columns.shared[self.dtype], columns.separate)
        return [self.kernel.bind_table(self.table, self.scalars, self.flush)]

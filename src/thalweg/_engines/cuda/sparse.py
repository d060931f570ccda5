"""Plan of a step with a sparse gradient on a GPU; one program updates one row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.codegen import Update
from thalweg._engines.cpu.sparse_plan import RowsPlan
from thalweg._engines.cuda import launch
from thalweg._engines.cuda.codegen import CHUNK, SIZES, THREADS, WARP, WIDTH, elements_per_load
from thalweg._engines.cuda.host_device_mirror import Mirror, Rows, is_capturing, send_constant
from thalweg._engines.protocol import Call, Columns, Scalars, StepRequest
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import IndexedSlices, assert_in_range


class RowsPart(RowsPlan):
    """Plan of a sparse step on a GPU; see `RowsPlan`.

    Entries are sorted by row, in order of appearance inside a row. The program of a row's first
    entry adds up all entries of the row. The host does not wait for the number of rows.
    """

    def __init__(self, request: StepRequest) -> None:
        _check_not_capturing()
        super().__init__(request)
        self._indices: Tensor | None = None
        self._home = self.var.device
        self._is_aligned = not any(pointer % WIDTH for pointer in self._pointers)
        self._is_fast = request.selection.math == "fast"
        self._plan_touched(self._describe_touched())
        untouched = self._describe_untouched()
        self._untouched = untouched and self._plan_untouched(untouched)

    def _plan_touched(self, update: Update) -> None:
        """Create the kernel and tables for rows with entries."""
        storage = update.storage
        threads = threads_for(self._width, storage)
        self._blocks = -(-self._width // (threads * elements_per_load(storage)))
        self._touched = launch.update_kernel(
            update, self.compute, self._flush, self._is_fast, self.rule.duplicates, threads
        )
        var_pointer, *other_pointers = self._pointers
        self._base = Mirror(np.array([var_pointer, 0, *other_pointers], np.int64), self._home)
        self._scalars = Rows(1, self._touched, self._home)
        multiple = WIDTH // min(SIZES[kind] for kind in storage)
        # All rows begin at multiples of 16 bytes if the gradient's values do.
        self._are_rows_aligned = self._is_aligned and not self._width % multiple

    def _plan_untouched(self, update: Update) -> launch.Compiled:
        """Create the tables for rows without entries and return their kernel."""
        kernel = launch.update_kernel(update, self.compute, self._flush, self._is_fast)
        self._base_of_all = send_constant(self._pointers, np.int64, self._home)
        self._scalars_of_all = Rows(1, kernel, self._home)
        # No load of a thread spans two rows.
        self._are_shares_aligned = self._is_aligned and not self._width % elements_per_load(
            update.storage
        )
        return kernel

    def _take_entries(self, values: Tensor, indices: Tensor) -> bool:
        """Bind values and indices and return True; return False if a CPU index is out of range.

        Indices on a GPU are checked by an assertion on the GPU, without waiting.
        """
        if indices.is_cuda:
            assert_in_range(indices, self._shape[0])
        else:
            try:
                IndexedSlices(values, indices).check_range(self._shape[0], "scatter")
            except InvalidArgumentError:
                return False
        self._values, self._indices = values, indices
        return True

    def point_at(self, slices: IndexedSlices) -> None:
        """Bind the plan to a gradient with valid indices."""
        self._values, self._indices = self._pack(slices)

    def make_calls(self, columns: Columns) -> list[Call]:
        """Return functions that update the variable when they are called in order.

        The functions update rows of the bound gradient, then all other rows if the rule has
        `update_untouched`, and then increment version counters of written tensors.

        Args:
            columns: The scalars of the step. No row is written if `apply_flag` is False on the GPU.

        Raises:
            RuntimeError: No gradient is bound, or a CUDA graph is being captured.
        """
        if self._indices is None:
            raise RuntimeError("the part is not aimed at a gradient")
        _check_not_capturing()
        by_variable = {name: vector[0] for name, vector in columns.by_variable.items()}
        scalars = {**columns.shared[self.compute], **by_variable}
        rows, order = self._indices.long().sort(stable=True)
        calls = self._calls_of_touched(rows, order, scalars, columns.apply_flag)
        if self._untouched is not None:
            calls += self._calls_of_untouched(self._untouched, rows, scalars, columns.apply_flag)
        return [*calls, self._mark]

    def _calls_of_touched(
        self, rows: Tensor, order: Tensor, scalars: Scalars, is_step_enabled: Tensor | None
    ) -> list[Call]:
        """Return functions that launch the update of the rows with entries.

        Args:
            rows, order: The sorted indices, and the position of each index before sorting.
            is_step_enabled: A scalar bool tensor. No row is updated if it is False. None for True.
        """
        # With every row -1, no row differs from the one before the first, so no program begins one.
        if is_step_enabled is not None:
            rows = torch.where(is_step_enabled, rows, -1)
        base, address = self._base, self._values_address
        if base.host[1] != address:
            # Marked first: after an interruption in between the table is sent again.
            base.mark_changed()
            base.host[1] = address
        is_aligned = self._are_rows_aligned and not address % WIDTH
        device_scalars = self._scalars.send_if_changed(scalars)
        arguments = (base.send_if_changed(), rows, order, len(rows), self._width, device_scalars)
        return self._touched.bind_to((len(rows), self._blocks), arguments, is_aligned).make_calls()

    def _calls_of_untouched(
        self,
        kernel: launch.Compiled,
        rows: Tensor,
        scalars: Scalars,
        is_step_enabled: Tensor | None,
    ) -> list[Call]:
        """Return functions that launch the update of the rows without entries."""
        height, elements = self._shape[0], self.var.numel()
        row_flags = torch.zeros(height, dtype=torch.int8, device=rows.device).index_fill_(
            0, rows, 1
        )
        # A skipped step updates no row, as if all rows had entries.
        if is_step_enabled is not None:
            row_flags = torch.where(is_step_enabled, row_flags, 1)
        device_scalars = self._scalars_of_all.send_if_changed(scalars)
        arguments = (self._base_of_all, row_flags, elements, self._width, device_scalars)
        return kernel.bind_to(
            (-(-elements // CHUNK), 1), arguments, self._are_shares_aligned
        ).make_calls()

    def release_gradients(self) -> None:
        super().release_gradients()
        self._indices = None


def threads_for(width: int, storage: Sequence[str]) -> int:
    """Return the number of threads of a program for rows of `width` elements: no idle warps."""
    threads = WARP
    while threads < THREADS and threads * elements_per_load(storage) < width:
        threads *= 2
    return threads


def _check_not_capturing() -> None:
    """Raise a RuntimeError while a CUDA graph is captured."""
    if is_capturing():
        raise RuntimeError("A step with a sparse gradient cannot be part of a CUDA graph.")

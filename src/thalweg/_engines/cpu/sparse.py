"""Plan of one variable with sparse gradients on the CPU, with scratch reused between steps."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from thalweg._engines.array_types import Array, Int64
from thalweg._engines.cpu import launch
from thalweg._engines.cpu.sparse_plan import RowsPlan
from thalweg._engines.cpu.work_table import CHUNK, ENTRIES, Table, cut_slices
from thalweg._engines.protocol import Call, Columns, Scalars, StepRequest
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import IndexedSlices

SHARE = 1 << 14  # elements of the rows that a thread takes at a time
_HASH = 1 << 16  # places of a hash table that stays in a core's cache
_BLOCK = 64  # bytes; what two threads write lies in blocks of its own


def _count_places(count: int) -> int:
    """Return the length of the hash table for `count` entries, a power of two."""
    # A longer table has fewer collisions, but takes longer to clear.
    capacity = 1 << max(count - 1, 0).bit_length()
    return max(2 * capacity, min(8 * capacity, _HASH))


class SparsePlan(RowsPlan):
    """CPU plan that updates rows of a variable by sparse gradients."""

    def __init__(self, request: StepRequest) -> None:
        super().__init__(request)
        touched, untouched = self._describe_touched(), self._describe_untouched()
        self._touched = launch.update_kernel(touched, self.compute, self.rule.duplicates)
        self._untouched = untouched and launch.update_kernel(untouched, self.compute)
        self._base = np.array([self._pointers[0], 0, *self._pointers[1:]], np.int64)
        self._scalars = np.zeros((1, len(self._touched.scalars)), self.compute)
        # A thread sums the entries of a row in its own block: in the type of the arithmetic, and
        # then rounded to the type of the values.
        bytes_of_row = self._width * (np.dtype(self.compute).itemsize + self.var.element_size())
        self._block = -(-bytes_of_row // _BLOCK) * _BLOCK
        self._argument = self._make_argument_block()
        self._address = self._argument.ctypes.data
        self._allocate_scratch(0)
        self._sums = np.empty(0, np.uint8)
        self._groups = 0
        self._gaps: tuple[Table, Array] | None = None  # the rows that no index names

    def _make_argument_block(self) -> Int64:
        """Return the 20 argument words of both kernels, which `codegen_sparse` describes."""
        argument = np.zeros(20, np.int64)
        argument[5] = self._width
        argument[9] = self._base.ctypes.data
        argument[10] = self._scalars.ctypes.data
        argument[12] = self._block
        argument[16] = self._shape[0]
        return argument

    def _allocate_scratch(self, count: int) -> None:
        """Allocate arrays for the grouping by row of `count` entries, or somewhat more."""
        self._capacity = capacity = 1 << max(count - 1, 0).bit_length()
        self._row_of = np.empty(capacity, np.int64)
        other_sizes = capacity, capacity + 1, _count_places(capacity)
        self._scratch = first, following, table = [np.empty(n, np.int32) for n in other_sizes]
        self._argument[6:9] = self._row_of.ctypes.data, first.ctypes.data, following.ctypes.data
        self._argument[17] = table.ctypes.data

    def _take_entries(self, values: Tensor, indices: Tensor) -> bool:
        return len(indices) < ENTRIES and self._group_by_row(values, indices) < 0

    def point_at(self, slices: IndexedSlices) -> None:
        values, indices = self._pack(slices)
        bad = self._group_by_row(values, indices)
        # A callback may have changed an index since validation.
        if bad >= 0:
            raise InvalidArgumentError(
                f"indices[{bad}] = {int(indices[bad])} is not in [0, {self._shape[0]})"
            )

    def _group_by_row(self, values: Tensor, indices: Tensor) -> int:
        """Group a gradient's entries by row in scratch memory, and keep `values` for the kernel.

        Return the position of the first index that is out of range, or -1.
        """
        count, argument = indices.shape[0], self._argument
        if count > self._capacity:
            self._allocate_scratch(count)
        self._values = values
        argument[14:16] = indices.data_ptr(), count
        argument[18] = _count_places(count)
        kernel = launch.group_kernel(str(indices.dtype).removeprefix("torch."))
        kernel.bind_argument(self._address, 1, count)()
        self._groups, bad = argument[[3, 19]].tolist()
        return bad

    def make_calls(self, columns: Columns) -> list[Call]:
        """Return calls that update rows with entries; with `update_untouched`, also other rows."""
        scalars = columns.scalars_of(0, self.compute)
        calls = self._touched_calls(scalars)
        if self._untouched is not None:
            calls.append(self._untouched_call(self._untouched, scalars))
        return [*calls, self._mark]

    def _touched_calls(self, scalars: Scalars) -> list[Call]:
        """Return [a call that updates the rows in the gradient's indices]; [] without values.

        Run the call before `_touched_calls` is called again; the plan reuses the call's argument.
        """
        width, groups, kernel = self._width, self._groups, self._touched
        elements = self.values.numel()
        if not elements:
            return []
        self._base[1] = self._values_address
        self._scalars[0] = [scalars[name] for name in kernel.scalars]
        rows_per_slice = max(SHARE // max(width, 1), 1)
        slices = -(-groups // rows_per_slice)
        threads = launch.threads_for(slices, elements)
        # One block more, because the first address is aligned below.
        argument, size = self._argument, threads * self._block + _BLOCK
        if self._sums.size < size:
            self._sums = np.empty(size, np.uint8)
            argument[11] = -(-self._sums.ctypes.data // _BLOCK) * _BLOCK
        argument[:5] = 0, slices, self._flush, groups, rows_per_slice
        argument[13] = 0
        return [kernel.bind_argument(self._address, threads, elements)]

    def _untouched_call(self, kernel: launch.Compiled, scalars: Scalars) -> Call:
        """Return a call that updates all rows that are not among the gradient's indices."""
        width, height = self._width, self._shape[0]
        sorted_rows = np.sort(self._row_of[: self._groups])
        limit = max(CHUNK // max(width, 1), 1)
        chunks = np.empty((self._groups + 1 + height // limit, 4), np.int64)
        sizes = self._groups, height, width, limit
        argument = np.array([sorted_rows.ctypes.data, *sizes, chunks.ctypes.data, 0], np.int64)
        launch.gap_kernel().bind_argument(argument.ctypes.data, 1, height)()
        chunks = chunks[: argument[6]]
        row = np.array([[scalars[name] for name in kernel.scalars]], kernel.dtype)
        base = np.array([self._pointers], np.int64)
        # The attribute keeps the memory alive that the call will read.
        self._gaps = (Table(base, chunks, cut_slices(chunks), np.zeros(1, np.int64)), row)
        return kernel.bind_table(*self._gaps, self._flush)

    def release_gradients(self) -> None:
        super().release_gradients()
        self._gaps = None

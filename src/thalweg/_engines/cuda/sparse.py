"""Sparse gradients on a GPU: a program for each row that one names, which no other touches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from thalweg._engines import layout
from thalweg._engines.cpu.sparse import from_zero
from thalweg._engines.cpu.sparse_plan import RowsPlan
from thalweg._engines.cuda import launch
from thalweg._engines.cuda.codegen import CHUNK, SIZES, THREADS, WARP, WIDTH, share_of
from thalweg._engines.cuda.device_scalars import Rows
from thalweg._engines.cuda.host_device_mirror import Mirror, is_capturing, send_constant
from thalweg._engines.protocol import Call, Columns, Scalars, StepRequest, formula_of_rows
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import IndexedSlices, assert_in_range


class RowsPart(RowsPlan):
    """See `RowsPlan`.

    Entries are sorted by row, those of a row in order of appearance; where a row begins, a program
    adds up its entries one after the other. How many rows there are, the host never asks.

    Args:
        asked: The step.
    """

    def __init__(self, asked: StepRequest) -> None:
        _refuse_capture()  # before anything is copied
        super().__init__(asked)
        self._indices: Tensor | None = None
        self._home = self.var.device
        self._is_aligned = not any(each % WIDTH for each in self._pointers)
        names = [layout.STORAGE_NAMES[each] for each in self._dtypes]
        self._plan_touched(asked, [names[0], layout.STORAGE_NAMES[self._kind], *names[1:]])
        self._untouched: launch.Compiled | None = None
        if self.rule.update_untouched is not None:
            self._untouched = self._plan_untouched(asked, names)

    def _plan_touched(self, asked: StepRequest, storage: Sequence[str]) -> None:
        rule = self.rule
        threads = threads_for(self._width, storage)
        self._blocks = -(-self._width // (threads * share_of(storage)))
        self._touched = launch.update_kernel(
            formula_of_rows(rule, self.var),
            (from_zero,) if rule.duplicates == "sum" else (),
            tuple(storage),
            self.compute,
            self._flush,
            duplicates=rule.duplicates,
            copy=self._copy is not None,
            entries=self.stages,
            before=rule.before,
            fast=asked.selection.math == "fast",
            from_copy=self._from_copy,
            threads=threads,
        )
        first, *rest = self._pointers
        self._base = Mirror(np.array([first, 0, *rest], np.int64), self._home)
        self._scalars = Rows(1, self._touched, self._home)
        whole = WIDTH // min(SIZES[kind] for kind in storage)
        # All rows begin at multiples of 16 bytes if the gradient's values do.
        self._are_rows_aligned = self._is_aligned and not self._width % whole

    def _plan_untouched(self, asked: StepRequest, storage: Sequence[str]) -> launch.Compiled:
        kernel = launch.update_kernel(
            self.rule.update_untouched,
            (),
            tuple(storage),
            self.compute,
            self._flush,
            False,
            copy=self._copy is not None,
            fast=asked.selection.math == "fast",
            from_copy=self._from_copy,
        )
        self._base_of_all = send_constant(self._pointers, np.int64, self._home)
        self._scalars_of_all = Rows(1, kernel, self._home)
        # No thread reads of two rows at once.
        self._are_shares_aligned = self._is_aligned and not self._width % share_of(storage)
        return kernel

    def _take_entries(self, values: Tensor, indices: Tensor) -> bool:
        if indices.is_cuda:
            assert_in_range(indices, self._shape[0])
        else:
            try:
                IndexedSlices(values, indices).check_range(self._shape[0], "scatter")
            except InvalidArgumentError:
                return False
        self._values, self._indices = values, indices
        return True

    def point_at(self, grad: IndexedSlices) -> None:
        """See `RowsPlan`; indices have been checked where they are."""
        self._values, self._indices = layout.as_packed(grad.values), grad.indices

    def make_calls(self, columns: Columns) -> list[Call]:
        """See `Part`."""
        if self._indices is None:
            raise RuntimeError("the part is not aimed at a gradient")
        _refuse_capture()
        separate = {name: each[0] for name, each in columns.separate.items()}
        scalars = {**columns.shared[self.compute], **separate}
        rows, order = self._indices.long().sort(stable=True)
        made = self._calls_of_touched(rows, order, scalars, columns.apply_flag)
        if self._untouched is not None:
            made += self._calls_of_untouched(self._untouched, rows, scalars, columns.apply_flag)
        return [*made, self._mark]

    def _calls_of_touched(
        self, rows: Tensor, order: Tensor, scalars: Scalars, taken: Tensor | None
    ) -> list[Call]:
        if taken is not None:  # no row begins with an entry whose row is that before the first one
            rows = torch.where(taken, rows, -1)
        base, address = self._base, self.values.data_ptr()
        if base.host[1] != address:
            base.mark_changed()  # first: what is interrupted in between is sent again
            base.host[1] = address
        is_aligned = self._are_rows_aligned and not address % WIDTH
        sent = self._scalars.send_if_changed(scalars)
        arguments = (base.send_if_changed(), rows, order, len(rows), self._width, sent)
        return self._touched.bind_to((len(rows), self._blocks), arguments, is_aligned).make_calls()

    def _calls_of_untouched(
        self, kernel: launch.Compiled, rows: Tensor, scalars: Scalars, taken: Tensor | None
    ) -> list[Call]:
        height, elements = self._shape[0], self.var.numel()
        named = torch.zeros(height, dtype=torch.int8, device=rows.device).index_fill_(0, rows, 1)
        if taken is not None:  # as if all were named
            named = torch.where(taken, named, 1)
        sent = self._scalars_of_all.send_if_changed(scalars)
        arguments = (self._base_of_all, named, elements, self._width, sent)
        return kernel.bind_to(
            (-(-elements // CHUNK), 1), arguments, self._are_shares_aligned
        ).make_calls()

    def release_gradients(self) -> None:
        """See `RowsPlan`."""
        super().release_gradients()
        self._indices = None


def threads_for(width: int, storage: Sequence[str]) -> int:
    """Threads of a program over a row: no more warps than have elements of it."""
    threads = WARP
    while threads < THREADS and threads * share_of(storage) < width:
        threads *= 2
    return threads


def _refuse_capture() -> None:
    if is_capturing():
        raise RuntimeError("A step with a sparse gradient cannot be part of a CUDA graph.")

"""One sparse gradient on a GPU: a program for each row, which no other touches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from thalweg.engines import layout
from thalweg.engines.arrays import Float64, Int64
from thalweg.engines.cpu.measure import max_abs, sums_of_pair
from thalweg.engines.cpu.sparse import from_zero
from thalweg.engines.cuda import launch
from thalweg.engines.cuda.codegen import WIDTH, block_of
from thalweg.engines.cuda.mirror import Mirror, is_capturing
from thalweg.engines.cuda.scalars import Rows
from thalweg.engines.engine import Call, Columns, Request, Scalars, Stages, formula_of_rows
from thalweg.engines.reference import resumed
from thalweg.formula import Formula, variable_squares
from thalweg.indexed_slices import IndexedSlices


class RowsPart:
    """The update of one contiguous variable by a sparse gradient; a `Part` of a step.

    Entries are sorted by row, those of a row in order of appearance; where a row begins, a program
    adds up its entries one after the other. How many rows there are, the host never asks.

    Args:
        asked: The step.
    """

    def __init__(self, asked: Request) -> None:
        (var,), (slots,), (grad,) = asked.variables, asked.slots, asked.gradients
        self._rule, self._stages = asked.rule, asked.stages
        copy = asked.copies[0] if asked.copies else None
        self.written = [var, *slots] if copy is None else [var, *slots, copy]
        self._var, self._copied = var, copy is not None
        self._from_copy = copy if asked.from_copies else None
        self._dtype = layout.compute_dtype(var.dtype)
        self._flush = asked.selection.denormals == "flush"
        self._fast = asked.selection.math == "fast"
        self._width = var.numel() // var.shape[0] if var.shape[0] else 0
        self._grad: IndexedSlices | None = grad
        self._values = layout.packed(grad.values)
        self._mark = partial(torch._C._increment_version, self.written)  # pyright: ignore[reportPrivateUsage]

    def again(self, asked: Request, bounds: Int64) -> bool:
        """See `Part`: each step is looked at anew."""
        return False

    def sums(
        self, formulas: tuple[Formula, ...], stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `Ready`."""
        own, var = columns.of(0, self._dtype), self._var
        if self._from_copy is not None and variable_squares in formulas:
            var = resumed(var, self._from_copy)
        return sums_of_pair(formulas, self._values, var, stages, own, self._dtype, self._flush)

    def leaves(
        self, formulas: tuple[Formula, ...], stages: Stages, columns: Columns
    ) -> list[Float64]:
        """See `Ready`."""
        return [np.empty((0, len(formulas)))]

    def max_abs(self) -> Float64:
        """See `Ready`."""
        return max_abs([self._values])

    def calls(self, columns: Columns) -> list[Call]:
        """See `Part`."""
        if self._grad is None:
            raise RuntimeError("the part is not aimed at a gradient")
        if is_capturing():
            raise RuntimeError("A step with a sparse gradient cannot be part of a CUDA graph.")
        separate = {name: each[0] for name, each in columns.separate.items()}
        scalars = {**columns.shared[self._dtype], **separate}
        rows, order = self._grad.indices.long().sort(stable=True)
        made = self._touched(rows, order, scalars, columns.taken)
        return [*made, *self._untouched(rows, scalars, columns.taken), self._mark]

    def _touched(
        self, rows: Tensor, order: Tensor, scalars: Scalars, taken: Tensor | None
    ) -> list[Call]:
        rule = self._rule
        if taken is not None:  # no row begins with an entry whose row is that before the first one
            rows = torch.where(taken, rows, -1)
        first, *rest = self.written
        streams = [first, self._values, *rest]
        storage = tuple(layout.STORAGE_NAMES[each.dtype] for each in streams)
        kernel = launch.compiled(
            formula_of_rows(rule, self._var),
            (from_zero,) if rule.duplicates == "sum" else (),
            storage,
            self._dtype,
            self._flush,
            duplicates=rule.duplicates,
            copy=self._copied,
            entries=self._stages,
            before=rule.before,
            fast=self._fast,
            from_copy=self._from_copy is not None,
        )
        base = self._addresses(streams)
        sent = self._sent(kernel, scalars)
        arguments = (base.sent(), rows, order, len(rows), self._width, sent)
        grid = len(rows), self._blocks(storage)
        return kernel.bound(grid, arguments, self._aligned(base)).calls()

    def _untouched(self, rows: Tensor, scalars: Scalars, taken: Tensor | None) -> list[Call]:
        if self._rule.update_untouched is None:
            return []
        storage = tuple(layout.STORAGE_NAMES[each.dtype] for each in self.written)
        kernel = launch.compiled(
            self._rule.update_untouched,
            (),
            storage,
            self._dtype,
            self._flush,
            False,
            copy=self._copied,
            fast=self._fast,
            from_copy=self._from_copy is not None,
        )
        height = self._var.shape[0]
        named = torch.zeros(height, dtype=torch.int8, device=rows.device).index_fill_(0, rows, 1)
        if taken is not None:  # as if all were named
            named = torch.where(taken, named, 1)
        base = self._addresses(self.written)
        arguments = (base.sent(), named, self._width, self._sent(kernel, scalars))
        grid = height, self._blocks(storage)
        return kernel.bound(grid, arguments, self._aligned(base)).calls()

    def _blocks(self, storage: Sequence[str]) -> int:
        return -(-self._width // block_of(storage))

    def _addresses(self, tensors: Sequence[Tensor]) -> Mirror:
        host = np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))
        return Mirror(host, self._var.device)

    def _aligned(self, base: Mirror) -> bool:
        """Whether all rows of all tensors begin at multiples of 16 bytes."""
        sizes = [each.element_size() for each in (*self.written, self._values)]
        strides = np.array(sizes) * self._width
        return not ((base.host % WIDTH).any() or (strides % WIDTH).any())

    def _sent(self, kernel: launch.Compiled, scalars: Scalars) -> Tensor:
        return Rows(1, kernel, self._var.device).sent(scalars)

    def release_gradients(self) -> None:
        """See `Ready`."""
        self._grad = None

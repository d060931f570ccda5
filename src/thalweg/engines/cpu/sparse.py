"""One sparse gradient on the CPU engine: rows updated in place, scratch kept between steps."""

# The loops of `rows` have no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.engines import layout
from thalweg.engines.arrays import Array, Float64, Int32, Int64
from thalweg.engines.cpu import launch, rows
from thalweg.engines.cpu.measure import max_abs, sums_of_pair
from thalweg.engines.cpu.work import CHUNK, ENTRIES, Table, slices, table
from thalweg.engines.engine import Call, Columns, Request, Scalars, Stages, formula_of_rows
from thalweg.engines.reference import resumed
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Formula, variable_squares
from thalweg.indexed_slices import IndexedSlices

SHARE = 1 << 14  # elements of the rows that a thread takes at a time
_HASH = 1 << 16  # places of a hash table that stays in a core's cache
_BLOCK = 64  # bytes; what two threads write lies in blocks of its own

_CPU = -1
_INDICES = (torch.int64, torch.int32)


def from_zero(grad: Any) -> Any:
    """TensorFlow adds the rows of a gradient onto zeros, which takes the sign from -0."""
    return grad + 0


def parts(grad: Any) -> tuple[Tensor, Tensor] | None:
    """Values and indices of a sparse gradient, torch's or ours; None if it is neither."""
    if type(grad) is IndexedSlices:
        return grad.values, grad.indices
    if type(grad) is Tensor and grad.layout is torch.sparse_coo and grad.sparse_dim() == 1:
        return grad._values(), grad._indices()[0]
    return None


class _Scratch:
    """Arrays for the entries of a gradient; they grow, and are never given back."""

    def __init__(self, count: int) -> None:
        room = 1 << max(count - 1, 0).bit_length()
        self.room = room
        self.row_of = np.empty(room, np.int64)
        self.first = np.empty(room, np.int32)
        self.following = np.empty(room + 1, np.int32)
        self._table = np.empty(_places(room), np.int32)

    def table(self, count: int) -> Int32:
        """The places of a hash table for so many entries."""
        return self._table[: _places(count)]


def _places(count: int) -> int:
    # Many places make few collisions, until clearing them costs more.
    room = 1 << max(count - 1, 0).bit_length()
    return max(2 * room, min(8 * room, _HASH))


class SparsePlan:
    """Updates of one variable by sparse gradients; a `Part` of a step.

    A step calls `again` or `point_at`, then `calls`. The plan owns references to what it writes.

    Args:
        asked: The step, of a contiguous variable whose gradient is `IndexedSlices`.
    """

    def __init__(self, asked: Request) -> None:
        (var,), (slots,), (grad,) = asked.variables, asked.slots, asked.gradients
        self.rule = rule = asked.rule
        self.stages = stages = asked.stages
        self.var = var
        self.slots = list(slots)
        self._copy = copy = asked.copies[0] if asked.copies else None
        self._from_copies = asked.from_copies
        from_copy = copy is not None and asked.from_copies
        self._flush = asked.selection.denormals == "flush"
        self._selection = asked.selection
        self.compute = layout.compute_dtype(var.dtype)
        self._kind = grad.dtype
        self.written = [var, *slots] if copy is None else [var, *slots, copy]
        names = [layout.STORAGE_NAMES[tensor.dtype] for tensor in self.written]
        width = var.numel() // var.shape[0] if var.shape[0] else 0
        self._touched = launch.compiled(
            formula_of_rows(rule, var),
            (from_zero,) if rule.duplicates == "sum" else (),
            (names[0], layout.STORAGE_NAMES[grad.dtype], *names[1:]),
            self.compute,
            duplicates=rule.duplicates,
            copy=copy is not None,
            entries=stages,
            before=rule.before,
            from_copy=from_copy,
        )
        self._untouched = None
        if rule.update_untouched is not None:
            self._untouched = launch.compiled(
                rule.update_untouched,
                (),
                tuple(names),
                self.compute,
                False,
                copy=copy is not None,
                from_copy=from_copy,
            )
        self._group = launch.jitted(rows.group_rows)
        self._width = width
        self._pointers = self._addresses()
        self._base = np.array([self._pointers[0], 0, *self._pointers[1:]], np.int64)
        self._scalars = np.zeros((1, len(self._touched.scalars)), self.compute)
        self._shape = var.shape
        self._row_shape = var.shape[1:]
        self._shapes = [tensor.shape for tensor in self.written]
        self._dtypes = [tensor.dtype for tensor in self.written]
        self._storages = [tensor.untyped_storage() for tensor in self.written]
        # What the kernel reads; entries 0 and 13 are counters that its threads share.
        self._argument = np.zeros(14, np.int64)
        self._argument[5] = width
        self._argument[9] = self._base.ctypes.data
        self._argument[10] = self._scalars.ctypes.data
        # A thread sums the entries of a row in its own block: in the type of the arithmetic, and
        # then rounded to the type of the values.
        bytes_of_row = width * (np.dtype(self.compute).itemsize + var.element_size())
        self._block = -(-bytes_of_row // _BLOCK) * _BLOCK
        self._argument[12] = self._block
        self._address = self._argument.ctypes.data
        self._scratch = _Scratch(0)
        self._sums = np.empty(0, np.uint8)
        self._groups = 0
        self._values: Tensor | None = None
        self._gaps: tuple[Table, Array] | None = None  # the rows that no index names
        self._mark = partial(torch._C._increment_version, self.written)  # pyright: ignore[reportPrivateUsage]

    def _addresses(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self.written]

    def _stands(self) -> bool:
        """Whether the written tensors lie where they lay, as they were."""
        try:
            return (
                self._addresses() == self._pointers
                and [tensor.shape for tensor in self.written] == self._shapes
                and [tensor.dtype for tensor in self.written] == self._dtypes
                and all(tensor.is_contiguous() for tensor in self.written)
            )
        except RuntimeError:
            return False

    def _is_of(self, asked: Request) -> bool:
        return (
            asked.rule is self.rule
            and asked.stages == self.stages
            and asked.variables[0] is self.var
            and asked.selection == self._selection
            and (asked.copies[0] if asked.copies else None) is self._copy
            and asked.from_copies == self._from_copies
            and self._stands()
        )

    def serves(self, asked: Request) -> bool:
        """Whether a plan made for this step would be this one."""
        (slots,) = asked.slots
        return (
            asked.gradients[0].dtype == self._kind
            and len(slots) == len(self.slots)
            and all(a is b for a, b in zip(slots, self.slots, strict=True))
            and self._is_of(asked)
        )

    def again(self, asked: Request, bounds: Int64) -> bool:
        """See `Part`. Nothing is written; False leaves the reasons to the careful path."""
        return self._is_of(asked) and self._aim(asked.gradients[0], bounds)

    def _aim(self, grad: Any, bounds: Int64) -> bool:
        try:
            found = parts(grad)
            if found is None:
                return False
            values, indices = found
            if type(values) is not Tensor or type(indices) is not Tensor:
                return False
            shape = grad.shape  # of torch's sparse tensor; ours may have none
            size = indices.shape
            if (
                (shape is not None and shape != self._shape)
                or values.dtype is not self._kind
                or indices.dtype not in _INDICES
                or len(size) != 1
                or values.shape != size + self._row_shape
                or not 0 < size[0] < ENTRIES
                or not _readable(values)
                or not _readable(indices)
            ):
                return False
            start = values.data_ptr()
        except RuntimeError:
            return False
        if not layout.apart(start, values.nbytes, bounds):
            return False
        return self._point(values, indices) < 0

    def point_at(self, grad: IndexedSlices) -> None:
        """Get ready for a gradient of the variable's row shape, copied if need be.

        Raises:
            InvalidArgumentError: An index is out of range.
        """
        indices = layout.packed(grad.indices)
        bad = self._point(layout.packed(grad.values), indices)
        if bad >= 0:  # checked before, but a callback may have changed it since
            raise InvalidArgumentError(
                f"indices[{bad}] = {int(indices[bad])} is not in [0, {self._shape[0]})"
            )

    def _point(self, values: Tensor, indices: Tensor) -> int:
        """Group the entries by row; the position of an index out of range, or -1."""
        count = indices.shape[0]
        if count > self._scratch.room or not self._argument[6]:
            self._scratch = _Scratch(count)
            self._argument[6] = self._scratch.row_of.ctypes.data
            self._argument[7] = self._scratch.first.ctypes.data
            self._argument[8] = self._scratch.following.ctypes.data
        kept, entries = self._scratch, indices.numpy()
        self._values = values
        self._groups, bad = self._group(
            entries, self._shape[0], kept.table(count), kept.row_of, kept.first, kept.following
        )
        return bad

    @property
    def values(self) -> Tensor:
        """The values of the gradient that the plan is ready for."""
        if self._values is None:
            raise RuntimeError("the plan is not aimed at a gradient")
        return self._values

    def sums(
        self, formulas: tuple[Formula, ...], stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `Ready`."""
        own, var = columns.of(0, self.compute), self.var
        if self._copy is not None and self._from_copies and variable_squares in formulas:
            var = resumed(var, self._copy)
        return sums_of_pair(formulas, self.values, var, stages, own, self.compute, self._flush)

    def leaves(
        self, formulas: tuple[Formula, ...], stages: Stages, columns: Columns
    ) -> list[Float64]:
        """See `Ready`."""
        return [np.empty((0, len(formulas)))]

    def max_abs(self) -> Float64:
        """See `Ready`."""
        return max_abs([self.values])

    def calls(self, columns: Columns) -> list[Call]:
        """What updates the rows that the gradient names, and the others where the rule says so."""
        scalars = columns.of(0, self.compute)
        made = self._touched_calls(scalars)
        if self._untouched is not None:
            made.append(self._untouched_call(self._untouched, scalars))
        return [*made, self._mark]

    def _touched_calls(self, scalars: Scalars) -> list[Call]:
        width, groups, kernel = self._width, self._groups, self._touched
        elements = self.values.numel()
        if not elements:
            return []
        self._base[1] = self.values.data_ptr()
        self._scalars[0] = [scalars[name] for name in kernel.scalars]
        share = max(SHARE // max(width, 1), 1)
        shares = -(-groups // share)
        threads = launch.threads_for(shares, elements)
        argument, size = self._argument, threads * self._block + _BLOCK
        if self._sums.size < size:
            self._sums = np.empty(size, np.uint8)
            argument[11] = -(-self._sums.ctypes.data // _BLOCK) * _BLOCK
        argument[:5] = 0, shares, self._flush, groups, share
        argument[13] = 0
        return [kernel.at(self._address, threads)]

    def _untouched_call(self, kernel: launch.Compiled, scalars: Scalars) -> Call:
        width, height = self._width, self._shape[0]
        limit = max(CHUNK // max(width, 1), 1)
        ordered = np.sort(self._scratch.row_of[: self._groups])
        chunks = np.empty((self._groups + 1 + height // limit, 4), np.int64)
        found = chunks[: launch.jitted(rows.gap_chunks)(ordered, height, width, limit, chunks)]
        row = np.array([[scalars[name] for name in kernel.scalars]], kernel.dtype)
        base = np.array([self._pointers], np.int64)
        self._gaps = table(base, found, slices(found), np.zeros(1, np.int64)), row
        return kernel.call(*self._gaps, self._flush)

    def release_gradients(self) -> None:
        """Forget the gradient."""
        self._values = self._gaps = None


def _readable(tensor: Tensor) -> bool:
    """Whether the elements lie in memory as they read, one after the other."""
    return (
        tensor.get_device() == _CPU
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and layout.aligned(tensor)
        and tensor.untyped_storage().nbytes()
        >= (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
        and (tensor.data_ptr() != 0)
    )

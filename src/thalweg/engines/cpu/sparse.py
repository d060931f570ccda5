"""One sparse gradient on the CPU engine: rows updated in place, scratch kept between steps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.engines import layout, reference
from thalweg.engines.cpu import launch, rows
from thalweg.engines.cpu.work import CHUNK, slices, table
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Formula, Rule
from thalweg.indexed_slices import IndexedSlices

ENTRIES = 2**31 - 1  # more entries than fit this plan's 32-bit numbers are left to the reference
SHARE = 1 << 14  # elements of the rows that a thread takes at a time
_HASH = 1 << 16  # places of a hash table that stays in a core's cache
_BLOCK = 64  # bytes; what two threads write lies in blocks of its own

_CPU = -1
_INDICES = (torch.int64, torch.int32)


def from_zero(grad):  # pyright: ignore
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

    def table(self, count: int) -> np.ndarray:
        """The places of a hash table for so many entries."""
        return self._table[: _places(count)]


def _places(count: int) -> int:
    # Many places make few collisions, until clearing them costs more.
    room = 1 << max(count - 1, 0).bit_length()
    return max(2 * room, min(8 * room, _HASH))


class SparsePlan:
    """Updates of one variable by sparse gradients.

    A step calls `aim` or `point_at`, then `run`. The plan owns references to what it writes.
    """

    def __init__(self, rule: Rule, var: Tensor, slots: Sequence[Tensor]) -> None:
        self.rule = rule
        self.var = var
        self.slots = list(slots)
        self.compute = layout.compute_dtype(var.dtype)
        names = [layout.STORAGE_NAMES[tensor.dtype] for tensor in (var, *slots)]
        width = var.numel() // var.shape[0] if var.shape[0] else 0
        formula: Formula = rule.update_sparse or rule.update
        if width == 1 and rule.update_single is not None:
            formula = rule.update_single
        stages = (from_zero,) if rule.duplicates == "sum" else ()
        self._touched = launch.compiled(
            formula, stages, (names[0], *names), self.compute, duplicates=rule.duplicates
        )
        self._untouched = None
        if rule.update_untouched is not None:
            self._untouched = launch.compiled(
                rule.update_untouched, (), tuple(names), self.compute, False
            )
        self._group = launch.jitted(rows.group_rows)
        self._width = width
        self.written = [var, *slots]
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

    def _addresses(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self.written]

    def stands(self) -> bool:
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

    def serves(self, rule: Rule, var: Tensor, slots: Sequence[Tensor]) -> bool:
        """Whether a plan made of these arguments would be this one."""
        return (
            rule is self.rule
            and var is self.var
            and len(slots) == len(self.slots)
            and all(a is b for a, b in zip(slots, self.slots, strict=True))
            and self.stands()
        )

    def aim(self, grad: Any, bounds: list[int]) -> bool:
        """Get ready for this gradient; False if it does not fit as it is.

        Nothing is written; a False return leaves the reasons to the careful path.

        Args:
            grad: Anything.
            bounds: Of the memory that the step writes, as `layout.bounds` gives them.
        """
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
                or values.dtype is not self._dtypes[0]
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
        before = bisect_right(bounds, start)
        if before & 1 or before != bisect_left(bounds, start + values.nbytes):
            return False
        return self._point(values, indices) < 0

    def point_at(self, values: Tensor, indices: Tensor) -> None:
        """Get ready for a gradient of the variable's dtype and row shape, copied if need be.

        Raises:
            InvalidArgumentError: An index is out of range.
        """
        indices = layout.packed(indices)
        bad = self._point(layout.packed(values), indices)
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

    def run(self, stages: tuple[Formula, ...], scalars: dict[str, Any], flush: bool) -> None:
        """Update the rows that the gradient names, and the others where the rule says so.

        Args:
            stages: What happens to the values first.
            scalars: The step's scalars in the variable's compute dtype.
            flush: Whether denormals are treated as zero.
        """
        values, self._values = self.values, None
        if stages:
            values = reference.transform(stages, values.detach(), scalars, flush)
        self._run_touched(values, scalars, flush)
        if self._untouched is not None:
            self._run_untouched(self._untouched, scalars, flush)
        torch.autograd.graph.increment_version(self.written)

    def _run_touched(self, values: Tensor, scalars: dict[str, Any], flush: bool) -> None:
        width, groups, kernel = self._width, self._groups, self._touched
        self._base[1] = values.data_ptr()
        self._scalars[0] = [scalars[name] for name in kernel.scalars]
        share = max(SHARE // max(width, 1), 1)
        shares = -(-groups // share)
        elements = values.numel()
        threads = launch.threads_for(shares, elements)
        argument, size = self._argument, threads * self._block + _BLOCK
        if self._sums.size < size:
            self._sums = np.empty(size, np.uint8)
            argument[11] = -(-self._sums.ctypes.data // _BLOCK) * _BLOCK
        argument[:5] = 0, shares, flush, groups, share
        argument[13] = 0
        if elements:
            kernel.launch(self._address, threads)

    def _run_untouched(self, kernel: launch.Compiled, scalars: dict[str, Any], flush: bool) -> None:
        width, height = self._width, self._shape[0]
        limit = max(CHUNK // max(width, 1), 1)
        ordered = np.sort(self._scratch.row_of[: self._groups])
        chunks = np.empty((self._groups + 1 + height // limit, 4), np.int64)
        found = chunks[: launch.jitted(rows.gap_chunks)(ordered, height, width, limit, chunks)]
        row = np.array([[scalars[name] for name in kernel.scalars]], kernel.dtype)
        base = np.array([self._pointers], np.int64)
        kernel.run(table(base, found, slices(found), np.zeros(1, np.int64)), row, flush)


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

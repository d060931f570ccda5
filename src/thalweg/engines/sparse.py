"""One sparse gradient on the CPU engine: rows updated in place, scratch kept between steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.engines import cpu, layout, rows
from thalweg.engines.codegen import SUM_GROUP
from thalweg.engines.work import CHUNK, Int64, slices, table
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Formula, Rule


def from_zero(grad):  # pyright: ignore
    """TensorFlow adds the rows of a gradient onto zeros, which takes the sign from -0."""
    return grad + 0


class _Scratch:
    """Arrays that grow and are never given back while their variable is trained."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: Any = np.int64) -> np.ndarray:
        size = int(np.prod(shape))
        found = self._arrays.get(name)
        if found is None or found.size < size or found.dtype != dtype:
            room = 1 << max(size - 1, 0).bit_length()
            found = self._arrays[name] = np.empty(room, dtype)
        return found[:size].reshape(shape)


class SparsePlan:
    """Updates of one variable by sparse gradients."""

    def __init__(self, rule: Rule, var: Tensor, slots: list[Tensor]) -> None:
        self.rule = rule
        self.var = var
        self.slots = slots
        self._scratch = _Scratch()
        self.compute = layout.compute_dtype(var.dtype)
        names = [layout.STORAGE_NAMES[tensor.dtype] for tensor in (var, *slots)]
        self._storage = names[0]
        width = var.numel() // var.shape[0] if var.shape[0] else 0
        formula: Formula = rule.update_sparse or rule.update
        if width == 1 and rule.update_single is not None:
            formula = rule.update_single
        stages = (from_zero,) if rule.duplicates == "sum" else ()
        self._touched = cpu.compiled(
            formula, stages, (names[0], *names), self.compute, scattered=True
        )
        self._untouched = None
        if rule.update_untouched is not None:
            self._untouched = cpu.compiled(
                rule.update_untouched, (), tuple(names), self.compute, False
            )
        self._sums = cpu.summing(names[0], self.compute)
        self._width = width
        self._base = np.zeros((1, len(names) + 1), np.int64)
        self._pointers = self._addresses()
        self._base[0, 0] = self._pointers[0]
        self._base[0, 2:] = self._pointers[1:]
        self._zero = np.zeros(1, np.int64)
        self._written = [var, *slots]
        self._shapes = [tensor.shape for tensor in self._written]
        self._dtypes = [tensor.dtype for tensor in self._written]
        self._storages = [tensor.untyped_storage() for tensor in self._written]

    def _addresses(self) -> list[int]:
        return [tensor.data_ptr() for tensor in (self.var, *self.slots)]

    def applies(self, rule: Rule, var: Tensor, slots: list[Tensor]) -> bool:
        """Whether this plan was made for these tensors, and they lie where they lay."""
        return (
            rule is self.rule
            and var is self.var
            and len(slots) == len(self.slots)
            and all(a is b for a, b in zip(slots, self.slots, strict=True))
            and self._addresses() == self._pointers
            and [tensor.shape for tensor in self._written] == self._shapes
            and [tensor.dtype for tensor in self._written] == self._dtypes
        )

    def run(self, values: Tensor, indices: Tensor, scalars: dict[str, Any], flush: bool) -> None:
        """Update the rows named by `indices` (in range), and the others where the rule says so."""
        values, indices = layout.packed(values), layout.packed(indices)
        take = self._scratch.take
        count, height, width = len(indices), self.var.shape[0], self._width
        entries = indices.numpy()
        row_of, first, last = take("row", (count,)), take("first", (count,)), take("last", (count,))
        following = take("following", (count,))
        hashed = take("hash", (1 << max(2 * count - 1, 1).bit_length(),))
        groups, bad = cpu.jitted(rows.group_rows)(
            entries, height, hashed, row_of, first, last, following
        )
        if bad >= 0:  # checked before, but a callback may have changed it since
            raise InvalidArgumentError(f"indices[{bad}] = {entries[bad]} is not in [0, {height})")
        self._run_touched(values, groups, row_of, first, following, scalars, flush)
        if self._untouched is not None:
            ordered = np.sort(row_of[:groups])
            limit = max(CHUNK // max(width, 1), 1)
            chunks = take("gaps", (groups + 1 + height // limit, 4))
            found = cpu.jitted(rows.gap_chunks)(ordered, height, width, limit, chunks)
            base = np.delete(self._base, 1, axis=1)
            self._launch(
                self._untouched, base, chunks[:found], slices(chunks[:found]), scalars, flush
            )
        torch.autograd.graph.increment_version(self._written)

    def _run_touched(
        self,
        values: Tensor,
        groups: int,
        row_of: Int64,
        first: Int64,
        following: Int64,
        scalars: dict[str, Any],
        flush: bool,
    ) -> None:
        take, width, count = self._scratch.take, self._width, len(first)
        self._base[0, 1] = values.data_ptr()
        if self.rule.duplicates == "successive":
            chunks, together = take("chunks", (count, 4)), take("together", (count,), np.bool_)
            cpu.jitted(rows.successive_chunks)(
                row_of, first, following, groups, width, chunks, together
            )
            bounds = slices(chunks, together=together)
        else:
            item = values.element_size()
            sums = take(
                "sums", ((count - groups) * width,), np.uint16 if item == 2 else self.compute
            )
            shift = (sums.ctypes.data - values.data_ptr()) // item
            chunks, repeated = take("chunks", (groups, 4)), take("repeated", (groups,))
            several = cpu.jitted(rows.summed_chunks)(
                row_of, first, following, groups, width, shift, chunks, repeated
            )
            if several:
                wide = take("wide", sums.shape, self.compute) if item == 2 else sums
                argument = np.array(
                    [
                        0,
                        several,
                        flush,
                        width,
                        repeated.ctypes.data,
                        first.ctypes.data,
                        following.ctypes.data,
                        values.data_ptr(),
                        sums.ctypes.data,
                        wide.ctypes.data,
                    ],
                    np.int64,
                )
                work = (count - groups + several) * width
                self._sums.launch(argument.ctypes.data, several // SUM_GROUP + 1, work)
            bounds = slices(chunks)
        self._launch(self._touched, self._base, chunks, bounds, scalars, flush)

    def _launch(
        self,
        kernel: cpu.Compiled,
        base: Int64,
        chunks: Int64,
        bounds: Int64,
        scalars: dict[str, Any],
        flush: bool,
    ) -> None:
        row = np.array([[scalars[name] for name in kernel.scalars]], kernel.dtype)
        kernel.run(table(base, chunks, bounds, self._zero), row, flush)

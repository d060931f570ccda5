"""Sums and largest magnitudes of tensors, computed in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from thalweg._engines import layout, reference
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.codegen import Measurement
from thalweg._engines.cpu import launch
from thalweg._engines.cpu.launch import Compiled
from thalweg._engines.cpu.work_table import (
    SCALARS,
    Table,
    choose_chunk_size,
    cut_slices,
    dense_chunks,
)
from thalweg._engines.protocol import Dtype, Stages
from thalweg._engines.reduction_order import LEAF, Tree, leaf_counts, leaves_of
from thalweg.formula import Formula

if TYPE_CHECKING:
    from thalweg._engines.cpu.offsets import Offsets

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Leaves:
    """Division of tensors into leaves, runs of elements that kernels sum separately.

    Args:
        sizes: The number of elements of each tensor.
        offsets: Optional. Offset tables of tensors that are not in row-major order.
    """

    def __init__(self, sizes: Sequence[int], offsets: Offsets | None = None) -> None:
        self.offsets = offsets
        self.elements = sum(sizes)
        self.counts = leaf_counts(sizes)
        self._tree = Tree(self.counts)
        self.chunks = dense_chunks(sizes, LEAF)
        self.bounds = cut_slices(self.chunks, choose_chunk_size(self.elements))

    def measure(
        self,
        kernel: Compiled,
        base: Int64,
        scalars: Mapping[str, Any] | None = None,
        flush: bool = False,
    ) -> Float64:
        """Run a kernel that sums formulas; return the sums of all leaves, tensor after tensor.

        Args:
            kernel: From `launch.sum_kernel`.
            base: (tensors, streams) contiguous addresses of memory that the caller keeps alive.
            scalars: {name: scalar}: a number, or an array with one number for each tensor.
            flush: True to treat denormals as zero.

        Returns:
            (leaves, measures) float64.
        """
        sweep = Sweep(self, kernel, base, scalar_rows(kernel.scalars, scalars or {}), flush)
        if self.elements:
            sweep.run()
        return sweep.leaves

    def combine(self, leaves: Float64) -> Float64:
        """Return the sum of each tensor, (tensors, ...), from the result of `measure`."""
        return self._tree.combine(leaves)


class MeasureLaunch:
    """Reducing kernel with the memory of its arguments, for repeated launches.

    Args:
        kernel: The kernel.
        rows: Scalars, from `scalar_rows`.
        elements: The number of elements that are measured.
        begin: Words of the kernel's argument before the scalars; the second is the number of
            slices.
        end: Words of the argument after the scalars.

    Attributes:
        address: The address of the argument.
    """

    def __init__(
        self,
        kernel: Compiled,
        rows: Float64,
        elements: int,
        begin: Sequence[int],
        end: Sequence[int] = (),
    ) -> None:
        self.kernel, self.rows, self._elements = kernel, rows, elements
        # With a step of 0 between rows, all tensors read the only row.
        scalars = rows.shape[1] if len(rows) > 1 else 0, rows.ctypes.data
        self._block = np.array([*begin, *scalars, *end], np.int64)
        self.address: int = self._block.ctypes.data

    @property
    def is_serial(self) -> bool:
        """Return True if the launch is too small for several threads."""
        return launch.is_serial(self._elements)

    def threads(self) -> int:
        """Return the number of threads for a launch now."""
        return launch.threads_for(int(self._block[1]), self._elements)

    def run(self) -> None:
        """Launch the kernel."""
        self.kernel.bind_argument(self.address, self.threads(), self._elements)()


class Sweep(MeasureLaunch):
    """Kernel that sums formulas over leaves, bound to its arguments.

    Args:
        kernel: From `launch.sum_kernel`.
        base: (tensors, streams) addresses of memory that the caller keeps alive.
        rows: From `scalar_rows`.
        flush: True if denormals count as zero.

    Attributes:
        leaves: (leaves, measures) float64, which each launch overwrites.
    """

    def __init__(
        self, leaf_plan: Leaves, kernel: Compiled, base: Int64, rows: Float64, flush: bool
    ) -> None:
        self._leaf_plan, self._base = leaf_plan, base
        self.leaves = np.empty((len(leaf_plan.chunks), kernel.measures), np.float64)
        offsets = 0 if leaf_plan.offsets is None else leaf_plan.offsets.table.ctypes.data
        block = [0, len(leaf_plan.bounds) - 1, flush, leaf_plan.bounds.ctypes.data]
        block += [leaf_plan.chunks.ctypes.data, base.ctypes.data]
        last_words = self.leaves.ctypes.data, base.shape[1], offsets
        super().__init__(kernel, rows, leaf_plan.elements, block, last_words)

    def copy_chunks(self) -> Int64:
        """Make the kernel read a copy of the chunks, whose lengths may change; return the copy."""
        # The block has only the address, so the attribute keeps the copy alive.
        self._chunks = chunks = self._leaf_plan.chunks.copy()
        self._block[4] = chunks.ctypes.data
        return chunks

    @property
    def chunks(self) -> Int64:
        """Return the original chunks, with the full lengths of all tensors."""
        return self._leaf_plan.chunks

    def record(self) -> tuple[int, int, int]:
        """Return the address of the leaves, the number of tensors, the address of leaf counts."""
        counts = self._leaf_plan.counts
        return self.leaves.ctypes.data, len(counts), counts.ctypes.data

    def sums(self) -> Float64:
        """Return the sums of the last call, (tensors, measures)."""
        return self._leaf_plan.combine(self.leaves)


def scalar_rows(names: Sequence[str], scalars: Mapping[str, Any]) -> Float64:
    """Return scalars as a float64 array: (tensors, names), or (1, names) if all are numbers.

    Args:
        scalars: {name: scalar}: a number, or an array with one number for each tensor.
    """
    if not names:
        return np.zeros((1, 0), np.float64)
    columns = np.broadcast_arrays(*(np.asarray(scalars[name], np.float64) for name in names))
    return np.stack(columns, axis=-1).reshape(-1, len(names))


def table_peaks(work: Table, dtype: torch.dtype, column: int) -> Float64:
    """Return each tensor's largest magnitude, (tensors,) float64; NaN propagates, empty gives 0.

    Args:
        column: The column of `work.base` with the addresses of the tensors' elements.
    """
    partial = np.zeros(len(work.chunks), np.int64)
    if work.elements:
        # A copy, because calls that were bound to the table and did not run yet read its argument.
        argument = work.copy_of_argument(False)
        argument[SCALARS + 1 :] = partial.ctypes.data, work.base.shape[1], column
        threads = launch.threads_for(len(work.bounds) - 1, work.elements)
        kernel = launch.peak_kernel(dtype.itemsize)
        kernel.bind_argument(argument.ctypes.data, threads, work.elements)()
    bits = np.zeros(len(work.base), np.int64)
    # As integers, bits are ordered like magnitudes, and NaN is above infinity.
    np.maximum.at(bits, work.chunks[:, 0], partial)
    signed = torch.from_numpy(bits)  # pyright: ignore[reportUnknownMemberType]
    integers = signed.to(_INTEGERS[dtype.itemsize])
    return integers.view(dtype).double().numpy()


def _measure_tensors(
    tensors: Sequence[Tensor],
    measure_memory: Callable[[Int64, list[int], torch.dtype], Float64],
    measure_other: Callable[[Tensor], Tensor],
) -> Float64:
    """Reduce each tensor to a number; return the numbers, (tensors,) float64.

    Args:
        measure_memory: `measure_memory(addresses, sizes, dtype)` returns the numbers of contiguous
            CPU tensors of one dtype; addresses are (tensors, 1).
        measure_other: `measure_other(flat)` returns the number of a flat tensor of another device,
            of shape ().
    """
    measures = np.zeros(len(tensors), np.float64)
    by_dtype: dict[torch.dtype, list[int]] = {}
    tensors = list(map(_flatten, tensors))
    for index, tensor in enumerate(tensors):
        if tensor.device.type == "cpu":
            by_dtype.setdefault(tensor.dtype, []).append(index)
        else:
            measures[index] = float(measure_other(tensor))
    for dtype, members in by_dtype.items():
        base = np.array([[tensors[index].data_ptr()] for index in members], np.int64)
        sizes = [tensors[index].numel() for index in members]
        measures[members] = measure_memory(base, sizes, dtype)
    return measures


def _flatten(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor in row-major order, as real numbers, in one dimension."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return layout.as_packed(tensor).reshape(-1)


def sums_of(
    formula: Formula,
    tensors: Sequence[Tensor],
    stages: Stages = (),
    scalars: Mapping[str, Any] | None = None,
    compute: Dtype | None = None,
    flush: bool = False,
) -> Float64:
    """Return the sum of a formula over the elements of each tensor.

    Args:
        formula: A formula that reads only the gradient, or `variable_squares`.
        stages: Formulas that transform the elements first, with `scalars` as keyword arguments.
        compute: The dtype of the stages; by default the compute dtype of each tensor.
        flush: True if the stages treat denormals as zero.

    Returns:
        (tensors,) float64.
    """

    def of_memory(base: Int64, sizes: list[int], dtype: torch.dtype) -> Float64:
        # Formulas take a variable and a gradient; both are the tensor.
        pair_base = np.repeat(base, 2, axis=1)
        storage = (layout.STORAGE_NAMES[dtype],) * 2
        name = np.dtype(compute or layout.compute_dtype(dtype)).name
        kernel = launch.sum_kernel(Measurement((formula,), storage, name, stages))
        leaves = Leaves(sizes)
        leaf_sums = leaves.measure(kernel, pair_base, scalars, flush and bool(stages))
        return leaves.combine(leaf_sums)[:, 0]

    def of_other(tensor: Tensor) -> Tensor:
        compute_torch_dtype = torch.float64 if compute is np.float64 else None
        values = reference.transform(
            stages, tensor, scalars or {}, flush, compute_torch_dtype
        ).double()
        leaves = leaves_of(formula(values, values))
        return Tree(leaf_counts([tensor.numel()]), tensor.device).combine(leaves)[0]

    return _measure_tensors(tensors, of_memory, of_other)


def max_abs(tensors: Sequence[Tensor]) -> Float64:
    """Return each tensor's largest magnitude, (tensors,) float64; NaN propagates, empty gives 0."""

    def of_memory(base: Int64, sizes: list[int], dtype: torch.dtype) -> Float64:
        chunk = choose_chunk_size(sum(sizes))
        chunks = dense_chunks(sizes, chunk)
        work = Table(base, chunks, cut_slices(chunks, chunk), np.zeros(len(sizes), np.int64))
        return table_peaks(work, dtype, 0)

    def of_other(tensor: Tensor) -> Tensor:
        doubles = tensor.double()
        return doubles.abs().max() if tensor.numel() else doubles.new_zeros(())

    return _measure_tensors(tensors, of_memory, of_other)

"""The measure pass: sums and largest magnitudes, one sweep over the tensors of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from thalweg._engines import layout, reference
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.cpu import launch
from thalweg._engines.cpu.launch import Compiled
from thalweg._engines.cpu.work_table import Table, chunk_of, cut_slices, dense_chunks, make_table
from thalweg._engines.protocol import Dtype, Stages
from thalweg._engines.reduction_order import LEAF, Tree, leaf_counts, leaves_of
from thalweg.formula import Formula, variable_squares

if TYPE_CHECKING:
    from thalweg._engines.cpu.offsets import Offsets

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Leaves:
    """The leaves of a set of tensors; made once, used for every measure in each step.

    Args:
        sizes: Elements of each tensor.
        offsets: Optional. Where the elements lie, for kernels that gather them.
    """

    def __init__(self, sizes: Sequence[int], offsets: Offsets | None = None) -> None:
        self.offsets = offsets
        self.elements = sum(sizes)
        self.counts = leaf_counts(sizes)
        self._tree = Tree(self.counts)
        self.chunks = dense_chunks(sizes, LEAF)
        self.bounds = cut_slices(self.chunks, chunk_of(self.elements))

    def measure(
        self,
        kernel: Compiled,
        base: Int64,
        scalars: Mapping[str, Any] | None = None,
        flush: bool = False,
    ) -> Float64:
        """The sums of all leaves, tensor after tensor, in one sweep.

        Args:
            kernel: From `launch.sum_kernel`.
            base: (tensors, streams) contiguous addresses; whoever calls keeps that memory alive.
            scalars: The kernel's by name: a number for all tensors, or an array of one for each.
            flush: Whether denormals count as zero, as in an update that flushes them.

        Returns:
            (leaves, measures) float64.
        """
        sweep = Sweep(self, kernel, base, scalar_rows(kernel.scalars, scalars or {}), flush)
        if self.elements:
            kernel.run_on_threads(sweep.address, sweep.threads())
        return sweep.leaves

    def combine(self, leaves: Float64) -> Float64:
        """One number for each tensor.

        Args:
            leaves: (leaves, ...), from `measure`.

        Returns:
            (tensors, ...).
        """
        return self._tree.combine(leaves)

    def split_by_tensor(self, leaves: Float64) -> list[Float64]:
        """Those of each tensor; as `combine` otherwise."""
        return np.split(leaves, np.cumsum(self.counts)[:-1])

    def compute_sums(
        self,
        kernel: Compiled,
        base: Int64,
        scalars: Mapping[str, Any] | None = None,
        flush: bool = False,
    ) -> Float64:
        """The sums of all tensors, (tensors, measures); arguments as those of `measure`."""
        return self.combine(self.measure(kernel, base, scalars, flush))


class Sweep:
    """A kernel that measures, and the block that it is called with.

    Args:
        own: The leaves.
        kernel: From `launch.sum_kernel`.
        base: (tensors, streams) addresses of memory that the caller keeps alive.
        rows: From `scalar_rows`.
        flush: Whether denormals count as zero.

    Attributes:
        leaves: (leaves, measures) float64, which a call fills.
        address: That of the block.
    """

    def __init__(
        self, own: Leaves, kernel: Compiled, base: Int64, rows: Float64, flush: bool
    ) -> None:
        self._own, self.kernel, self.rows, self._base = own, kernel, rows, base
        self.leaves = np.empty((len(own.chunks), kernel.measures), np.float64)
        self._block = np.array(
            [
                0,
                len(own.bounds) - 1,
                flush,
                own.bounds.ctypes.data,
                own.chunks.ctypes.data,
                base.ctypes.data,
                rows.shape[1] if len(rows) > 1 else 0,
                rows.ctypes.data,
                self.leaves.ctypes.data,
                base.shape[1],
                0 if own.offsets is None else own.offsets.table.ctypes.data,
            ],
            np.int64,
        )
        self.address = self._block.ctypes.data

    def copy_chunks(self) -> Int64:
        """Replace the chunks by a copy whose lengths may change, and return it."""
        self._chunks = chunks = self._own.chunks.copy()  # which the block only points at
        self._block[4] = chunks.ctypes.data
        return chunks

    @property
    def chunks(self) -> Int64:
        """The chunks of all tensors, with all of their elements."""
        return self._own.chunks

    def record(self) -> tuple[int, int, int]:
        """Where the leaves are, of how many tensors, and where it says how many each has."""
        counts = self._own.counts
        return self.leaves.ctypes.data, len(counts), counts.ctypes.data

    @property
    def is_serial(self) -> bool:
        """Whether one thread is always enough."""
        return launch.is_serial(self._own.elements)

    def threads(self) -> int:
        """How many threads it deserves now."""
        return launch.threads_for(len(self._own.bounds) - 1, self._own.elements)

    def sums(self) -> Float64:
        """One number for each tensor and measure, of what was last measured."""
        return self._own.combine(self.leaves)


def scalar_rows(names: Sequence[str], scalars: Mapping[str, Any]) -> Float64:
    """The scalars of each tensor, or a single row if all tensors share them; float64."""
    if not names:
        return np.zeros((1, 0), np.float64)
    columns = np.broadcast_arrays(*(np.asarray(scalars[name], np.float64) for name in names))
    return np.stack(columns, axis=-1).reshape(-1, len(names))


def table_peaks(work: Table, dtype: torch.dtype, column: int) -> Float64:
    """Largest magnitude of one stream of a table, NaN for a tensor that holds a NaN.

    Args:
        work: A table.
        dtype: Of the stream.
        column: Which stream.

    Returns:
        (tensors,) float64; 0 for a tensor without elements.
    """
    partial = np.zeros(len(work.chunks), np.int64)
    if work.elements:
        argument = work.fill_peak_argument(partial, column)
        threads = launch.threads_for(len(work.bounds) - 1, work.elements)
        launch.peak_kernel(dtype.itemsize).run_on_threads(argument, threads)
    bits = np.zeros(len(work.base), np.int64)
    np.maximum.at(bits, work.chunks[:, 0], partial)
    signed = torch.from_numpy(bits)  # pyright: ignore[reportUnknownMemberType]
    integers = signed.to(_INTEGERS[dtype.itemsize])
    return integers.view(dtype).double().numpy()


def _by_tensor(
    tensors: Sequence[Tensor],
    of_memory: Callable[[Int64, list[int], torch.dtype], Float64],
    of_other: Callable[[Tensor], Tensor],
) -> Float64:
    """A measure of each tensor.

    Args:
        tensors: On any devices.
        of_memory: Of the addresses, sizes and dtype of tensors in the CPU's memory.
        of_other: Of one tensor elsewhere, flat.
    """
    result = np.zeros(len(tensors), np.float64)
    by_dtype: dict[torch.dtype, list[int]] = {}
    tensors = list(map(_flatten, tensors))
    for index, tensor in enumerate(tensors):
        if tensor.device.type == "cpu":
            by_dtype.setdefault(tensor.dtype, []).append(index)
        else:
            result[index] = float(of_other(tensor))
    for dtype, members in by_dtype.items():
        base = np.array([[tensors[index].data_ptr()] for index in members], np.int64)
        sizes = [tensors[index].numel() for index in members]
        result[members] = of_memory(base, sizes, dtype)
    return result


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
    """The sum over the elements of each tensor of a formula that reads no other.

    Args:
        formula: One that reads the gradient alone, or `variable_squares`.
        tensors: Tensors on any devices.
        stages: What is applied to the elements first.
        scalars: Those of the stages.
        compute: The type of the stages; that in which such variables are computed by default.
        flush: Whether the stages treat denormals as zero.

    Returns:
        (tensors,) float64.
    """

    def of_memory(base: Int64, sizes: list[int], dtype: torch.dtype) -> Float64:
        both = np.repeat(base, 2, axis=1)
        storage = (layout.STORAGE_NAMES[dtype],) * 2
        kernel = launch.sum_kernel(
            (formula,), stages, storage, compute or layout.compute_dtype(dtype)
        )
        return Leaves(sizes).compute_sums(kernel, both, scalars, flush and bool(stages))[:, 0]

    def of_other(tensor: Tensor) -> Tensor:
        kind = torch.float64 if compute is np.float64 else None
        values = reference.transform(stages, tensor, scalars or {}, flush, kind).double()
        leaves = leaves_of(formula(values, values))
        return Tree(leaf_counts([tensor.numel()]), tensor.device).combine(leaves)[0]

    return _by_tensor(tensors, of_memory, of_other)


def sums_of_pair(
    formulas: Sequence[Formula],
    grad: Tensor,
    var: Tensor,
    stages: Stages,
    scalars: Mapping[str, Any],
    compute: Dtype,
    flush: bool,
) -> list[Float64]:
    """Of each formula its sum over a gradient, or the values of a sparse one, or over its variable.

    The values of a sparse gradient count as they come, repeated rows and all.

    Args:
        formulas: Each reads the gradient alone, but for `variable_squares`.
        grad, var: Gradient and variable.
        stages, scalars, compute, flush: Of the gradient, as in `sums_of`.

    Returns:
        For each formula an array of shape (1,), float64.
    """
    return [
        sums_of(each, [var])
        if each is variable_squares
        else sums_of(each, [grad], stages, scalars, compute, flush)
        for each in formulas
    ]


def max_abs(tensors: Sequence[Tensor]) -> Float64:
    """Largest magnitude of each tensor, in float64; NaN if it holds a NaN, 0 if it is empty."""

    def of_memory(base: Int64, sizes: list[int], dtype: torch.dtype) -> Float64:
        chunk = chunk_of(sum(sizes))
        chunks = dense_chunks(sizes, chunk)
        work = make_table(base, chunks, cut_slices(chunks, chunk), np.zeros(len(sizes), np.int64))
        return table_peaks(work, dtype, 0)

    def of_other(tensor: Tensor) -> Tensor:
        wide = tensor.double()
        return wide.abs().max() if tensor.numel() else wide.new_zeros(())

    return _by_tensor(tensors, of_memory, of_other)

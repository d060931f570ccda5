"""The measure pass: sums and largest magnitudes, one sweep over the tensors of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thalweg.engines import layout
from thalweg.engines.cpu import launch
from thalweg.engines.cpu.launch import Compiled
from thalweg.engines.cpu.work import Int64, Table, chunk_of, dense_chunks, slices, table
from thalweg.engines.measuring import (
    LEAF,
    Tree,
    bounded,
    gradient_squares,
    leaf_counts,
    leaves_of,
    variable_squares,
)

Float64 = npt.NDArray[np.float64]

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Leaves:
    """The leaves of a set of tensors; made once, used for every measure in each step.

    Args:
        sizes: Elements of each tensor.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._tensors = len(sizes)
        self._elements = sum(sizes)
        self.counts = leaf_counts(sizes)
        self._tree = Tree(self.counts)
        self._chunks = dense_chunks(sizes, LEAF)
        self._bounds = slices(self._chunks, chunk_of(self._elements))

    def measure(
        self,
        kernel: Compiled,
        base: Int64,
        scalars: Mapping[str, Any] | None = None,
        flush: bool = False,
    ) -> Float64:
        """The sums of all leaves, tensor after tensor, in one sweep.

        Args:
            kernel: From `launch.measuring`.
            base: (tensors, streams) contiguous addresses; whoever calls keeps that memory alive.
            scalars: The kernel's by name: a number for all tensors, or an array of one for each.
            flush: Whether denormals count as zero, as in an update that flushes them.

        Returns:
            (leaves, measures) float64.
        """
        leaves = np.empty((len(self._chunks), kernel.measures), np.float64)
        if self._elements:
            rows = _rows(kernel.scalars, scalars or {})
            block = np.array(
                [
                    0,
                    len(self._bounds) - 1,
                    flush,
                    self._bounds.ctypes.data,
                    self._chunks.ctypes.data,
                    base.ctypes.data,
                    rows.shape[1] if len(rows) > 1 else 0,
                    rows.ctypes.data,
                    leaves.ctypes.data,
                    base.shape[1],
                ],
                np.int64,
            )
            threads = launch.threads_for(len(self._bounds) - 1, self._elements)
            kernel.launch(block.ctypes.data, threads)
        return leaves

    def combined(self, leaves: Float64) -> Float64:
        """One number for each tensor.

        Args:
            leaves: (leaves, ...), from `measure`.

        Returns:
            (tensors, ...).
        """
        return self._tree.combined(leaves)

    def sums(
        self,
        kernel: Compiled,
        base: Int64,
        scalars: Mapping[str, Any] | None = None,
        flush: bool = False,
    ) -> Float64:
        """The sums of all tensors, (tensors, measures); arguments as those of `measure`."""
        return self.combined(self.measure(kernel, base, scalars, flush))


def _rows(names: Sequence[str], scalars: Mapping[str, Any]) -> Float64:
    """The scalars of each tensor, or a single row if all tensors share them; float64."""
    if not names:
        return np.zeros((1, 0), np.float64)
    columns = np.broadcast_arrays(*(np.asarray(scalars[name], np.float64) for name in names))
    return np.stack(columns, axis=-1).reshape(-1, len(names))


def squares(
    leaves: Leaves,
    base: Int64,
    storage: tuple[str, ...],
    compute: type[np.floating],
    column: int,
    bound: float = np.inf,
) -> Float64:
    """Sum of squares of variables or gradients.

    Args:
        leaves: Of the tensors.
        base: (tensors, streams) addresses.
        storage: Storage types of the streams.
        compute: In what the tensors are updated.
        column: 0 for the variables, 1 for the gradients.
        bound: Elements of gradients count as if clipped to [-bound, bound] first, in `compute`.

    Returns:
        (tensors,) float64.
    """
    formula = (variable_squares, gradient_squares)[column]
    stages = (bounded,) if bound < np.inf else ()
    kernel = launch.measuring((formula,), stages, storage[:2], compute)
    return leaves.sums(kernel, base, {"bound": bound})[:, 0]


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
        argument = work.measuring(partial, column)
        threads = launch.threads_for(len(work.bounds) - 1, work.elements)
        launch.peaking(dtype.itemsize).launch(argument, threads)
    bits = np.zeros(len(work.base), np.int64)
    np.maximum.at(bits, work.chunks[:, 0], partial)
    integers = torch.from_numpy(bits).to(_INTEGERS[dtype.itemsize])
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
    tensors = [_in_memory_order(each) for each in tensors]
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


def _in_memory_order(tensor: Tensor) -> Tensor:
    """The elements one after the other as they lie, or as they read if they lie apart; aligned."""
    tensor = tensor.detach().resolve_neg()
    if tensor.is_contiguous() or not layout.dense(tensor):
        return layout.packed(tensor).reshape(-1)
    return layout.packed(tensor.as_strided((tensor.numel(),), (1,)))


def sums_of_squares(tensors: Sequence[Tensor], bound: float = np.inf) -> Float64:
    """Sum of squares of each tensor, in float64, its elements clipped to [-bound, bound] first."""

    def of_memory(base: Int64, sizes: list[int], dtype: torch.dtype) -> Float64:
        both = np.repeat(base, 2, axis=1)
        storage = (layout.STORAGE_NAMES[dtype],) * 2
        return squares(Leaves(sizes), both, storage, layout.compute_dtype(dtype), 1, bound)

    def of_other(tensor: Tensor) -> Tensor:
        if bound < np.inf:
            wide = tensor if tensor.dtype == torch.float64 else tensor.float()
            tensor = wide.clamp(-bound, bound)
        leaves = leaves_of(tensor.double().square())
        counts = leaf_counts([tensor.numel()])
        return Tree(counts, tensor.device).combined(leaves)[0]

    return _by_tensor(tensors, of_memory, of_other)


def peaks(tensors: Sequence[Tensor]) -> Float64:
    """Largest magnitude of each tensor, in float64; NaN if it holds a NaN, 0 if it is empty."""

    def of_memory(base: Int64, sizes: list[int], dtype: torch.dtype) -> Float64:
        chunk = chunk_of(sum(sizes))
        chunks = dense_chunks(sizes, chunk)
        work = table(base, chunks, slices(chunks, chunk), np.zeros(len(sizes), np.int64))
        return table_peaks(work, dtype, 0)

    def of_other(tensor: Tensor) -> Tensor:
        return tensor.double().abs().max() if tensor.numel() else torch.zeros(())

    return _by_tensor(tensors, of_memory, of_other)


class Tensors:
    """Measures of any tensors, without a plan.

    Args:
        gradients: Dense, or the values of sparse ones.
        variables: As many.
    """

    def __init__(self, gradients: Sequence[Tensor], variables: Sequence[Tensor]) -> None:
        pairs = zip(gradients, variables, strict=True)
        self._gradients = [_ordered(grad, var) for grad, var in pairs]
        self._variables = variables

    def squares(self, bound: float = np.inf) -> Float64:
        """Sum of squares of each gradient."""
        return sums_of_squares(self._gradients, bound)

    def peaks(self) -> Float64:
        """Largest magnitude of each gradient."""
        return peaks(self._gradients)

    def variable_squares(self) -> Float64:
        """Sum of squares of each variable."""
        return sums_of_squares(self._variables)


def _ordered(grad: Tensor, var: Tensor) -> Tensor:
    """A gradient in the order of its variable's memory, as plans have it."""
    if grad.shape == var.shape and layout.dense(var):
        return layout.like(grad, var)
    return layout.packed(grad)

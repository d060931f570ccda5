"""The measure pass: sums of squares and largest magnitudes, one sweep for all tensors of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from thalweg.engines import layout
from thalweg.engines.cpu import launch
from thalweg.engines.cpu.work import Table, chunk_of, dense_chunks, slices, table

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNBOUNDED = np.array([np.inf])


def table_sums(work: Table, storage: str, column: int, bound: float) -> np.ndarray:
    """Sum of squares of one stream of a table.

    Every chunk is summed in float64 and chunks are added in their order, so that the result does
    not depend on the number of threads.

    Args:
        work: A table whose chunks lie tensor after tensor.
        storage: Storage type of the stream.
        column: Which stream.
        bound: Elements count as if clipped to [-bound, bound] first.

    Returns:
        (tensors,) float64.
    """
    tensors = len(work.base)
    partial = np.zeros(len(work.chunks), np.float64)
    if work.elements:
        limit = np.array([bound], np.float64)
        argument = work.measuring(limit, partial, column)
        threads = launch.threads_for(len(work.bounds) - 1, work.elements)
        launch.measuring(storage, bound < np.inf).launch(argument, threads)
    result = np.zeros(tensors, np.float64)
    np.add.at(result, work.chunks[:, 0], partial)
    return result


def table_peaks(work: Table, dtype: torch.dtype, column: int) -> np.ndarray:
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
        argument = work.measuring(_UNBOUNDED, partial, column)
        threads = launch.threads_for(len(work.bounds) - 1, work.elements)
        launch.peaking(dtype.itemsize).launch(argument, threads)
    bits = np.zeros(len(work.base), np.int64)
    np.maximum.at(bits, work.chunks[:, 0], partial)
    integers = torch.from_numpy(bits).to(_INTEGERS[dtype.itemsize])
    return integers.view(dtype).double().numpy()


def _by_tensor(
    tensors: Sequence[Tensor],
    of_table: Callable[[Table, torch.dtype], np.ndarray],
    of_other: Callable[[Tensor], Tensor],
) -> np.ndarray:
    """A measure of each tensor: by a kernel for those in the CPU's memory, by torch for others."""
    result = np.zeros(len(tensors), np.float64)
    by_dtype: dict[torch.dtype, list[int]] = {}
    # Copied alike whatever the strides, so that a sum does not depend on them.
    tensors = [layout.packed(each) if each.device.type == "cpu" else each for each in tensors]
    for index, tensor in enumerate(tensors):
        if tensor.device.type == "cpu":
            by_dtype.setdefault(tensor.dtype, []).append(index)
        else:
            result[index] = float(of_other(tensor.detach().double()))
    for dtype, members in by_dtype.items():
        base = np.array([[tensors[index].data_ptr()] for index in members], np.int64)
        sizes = [tensors[index].numel() for index in members]
        chunk = chunk_of(sum(sizes))  # as plans have it, whose sums are to be the same
        chunks = dense_chunks(sizes, chunk)
        work = table(base, chunks, slices(chunks, chunk), np.zeros(len(members), np.int64))
        result[members] = of_table(work, dtype)
    return result


def sums_of_squares(tensors: Sequence[Tensor], bound: float = np.inf) -> np.ndarray:
    """Sum of squares of each tensor, in float64, its elements clipped to [-bound, bound] first."""
    return _by_tensor(
        tensors,
        lambda work, dtype: table_sums(work, layout.STORAGE_NAMES[dtype], 0, bound),
        lambda wide: wide.clamp(-bound, bound).square().sum(),
    )


def peaks(tensors: Sequence[Tensor]) -> np.ndarray:
    """Largest magnitude of each tensor, in float64; NaN if it holds a NaN, 0 if it is empty."""
    return _by_tensor(
        tensors,
        lambda work, dtype: table_peaks(work, dtype, 0),
        lambda wide: wide.abs().max() if wide.numel() else torch.zeros(()),
    )


class Tensors:
    """Measures of any tensors, without a plan.

    Args:
        gradients: Dense, or the values of sparse ones.
        variables: As many.
    """

    def __init__(self, gradients: Sequence[Tensor], variables: Sequence[Tensor]) -> None:
        self._gradients = gradients
        self._variables = variables

    def squares(self, bound: float = np.inf) -> np.ndarray:
        """Sum of squares of each gradient."""
        return sums_of_squares(self._gradients, bound)

    def peaks(self) -> np.ndarray:
        """Largest magnitude of each gradient."""
        return peaks(self._gradients)

    def variable_squares(self) -> np.ndarray:
        """Sum of squares of each variable."""
        return sums_of_squares(self._variables)

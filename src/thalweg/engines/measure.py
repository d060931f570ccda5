"""The measure pass: sums of squares of gradients, one sweep for all tensors of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from thalweg.engines import cpu, layout
from thalweg.engines.work import Table, dense_chunks, slices, table


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
        threads = cpu.threads_for(len(work.bounds) - 1, work.elements)
        cpu.measuring(storage).launch(argument, threads)
    result = np.zeros(tensors, np.float64)
    np.add.at(result, work.chunks[:, 0], partial)
    return result


def sums_of_squares(tensors: Sequence[Tensor], bound: float = np.inf) -> np.ndarray:
    """Sum of squares of each tensor, in float64, its elements clipped to [-bound, bound] first."""
    result = np.zeros(len(tensors), np.float64)
    by_dtype: dict[torch.dtype, list[int]] = {}
    # Copied alike whatever the strides, so that a sum does not depend on them.
    tensors = [layout.packed(each) if each.device.type == "cpu" else each for each in tensors]
    for index, tensor in enumerate(tensors):
        if tensor.device.type == "cpu":
            by_dtype.setdefault(tensor.dtype, []).append(index)
        else:
            wide = tensor.detach().double().clamp(-bound, bound)
            result[index] = float((wide * wide).sum())
    for dtype, members in by_dtype.items():
        base = np.array([[tensors[index].data_ptr()] for index in members], np.int64)
        chunks = dense_chunks([tensors[index].numel() for index in members])
        work = table(base, chunks, slices(chunks), np.zeros(len(members), np.int64))
        result[members] = table_sums(work, layout.STORAGE_NAMES[dtype], 0, bound)
    return result

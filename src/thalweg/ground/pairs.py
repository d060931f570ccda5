"""Numbers that are added in pairs of neighbours, and their sums likewise, where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def pairs_of(partial: Tensor, dim: int) -> list[tuple[Tensor, Tensor]]:
    """Neighbours along a dimension, at first, then those of their sums, and so on; views."""
    pairs: list[tuple[Tensor, Tensor]] = []
    count, step, before = partial.shape[dim], 1, (slice(None),) * dim
    while step < count:
        left, right = slice(0, count - step, 2 * step), slice(step, count, 2 * step)
        pairs.append((partial[*before, left], partial[*before, right]))
        step *= 2
    return pairs


def join_pairs(pairs: Sequence[tuple[Tensor, Tensor]], reduce: str, flush: bool = False) -> None:
    """Have the first of all hold what all have; the others are lost.

    Args:
        pairs: From `pairs_of`.
        reduce: "sum" or "largest".
        flush: Whether denormals are treated as zero, whatever the device and its flags.
    """
    for left, right in pairs:
        if reduce == "sum":
            left.add_(right)
        else:
            torch.maximum(left, right, out=left)
        if flush:
            flush_denormals(left)


def sum_in_pairs(values: npt.NDArray[Any], dim: int) -> npt.NDArray[Any]:
    """The sum of an array along a dimension, of length 1 then, as `join_pairs` has it."""
    total, before = values.copy(), (slice(None),) * dim
    count, step = values.shape[dim], 1
    while step < count:
        left = total[*before, : count - step : 2 * step]
        np.add(left, total[*before, step :: 2 * step], out=left)
        step *= 2
    return total[*before, :1]


def flush_denormals(values: Tensor) -> None:
    """Have denormals be zero."""
    values.masked_fill_(values.abs() < torch.finfo(values.dtype).tiny, 0.0)

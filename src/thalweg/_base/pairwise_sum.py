"""Numbers that are added in pairs of neighbours, and their sums likewise, where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from operator import iadd
from typing import Any

import torch
from torch import Tensor


def pairs_of(partial: Any, dim: int) -> list[tuple[Any, Any]]:
    """Neighbours along a dimension, at first, then those of their sums, and so on; views.

    Args:
        partial: A tensor, or an array.
        dim: The dimension.
    """
    pairs: list[tuple[Any, Any]] = []
    count, step, before = partial.shape[dim], 1, (slice(None),) * dim
    while step < count:
        left, right = slice(0, count - step, 2 * step), slice(step, count, 2 * step)
        pairs.append((partial[*before, left], partial[*before, right]))
        step *= 2
    return pairs


def join_pairs(pairs: Sequence[tuple[Any, Any]], reduce: str, flush: bool = False) -> None:
    """Have the first of all hold what all have; the others are lost.

    Args:
        pairs: From `pairs_of`.
        reduce: "sum", or of tensors "largest".
        flush: Whether denormals are treated as zero, whatever the device and its flags.
    """
    for left, right in pairs:
        if reduce == "sum":
            iadd(left, right)  # of either kind, where it lies
        else:
            torch.maximum(left, right, out=left)
        if flush:
            flush_denormals(left)


def flush_denormals(values: Tensor) -> None:
    """Have denormals be zero."""
    values.masked_fill_(values.abs() < torch.finfo(values.dtype).tiny, 0.0)

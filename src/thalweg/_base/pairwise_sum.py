"""In-place sums in the order of a binary tree: of neighbours, then of neighbouring sums."""

from __future__ import annotations

from collections.abc import Sequence
from operator import iadd
from typing import Any

import torch
from torch import Tensor


def pairs_of(partial: Any, dim: int) -> list[tuple[Any, Any]]:
    """Return pairs of views of `partial` along `dim`, one pair for each level of the tree.

    The first pair has elements (0, 2, ...) and (1, 3, ...), the second (0, 4, ...) and (2, 6, ...).

    Args:
        partial: A tensor or an array.
        dim: The dimension, not negative.
    """
    pairs: list[tuple[Any, Any]] = []
    count, step, leading = partial.shape[dim], 1, (slice(None),) * dim
    while step < count:
        # Without the stop, `lower` would include an element that has no right neighbour.
        lower, upper = slice(0, count - step, 2 * step), slice(step, count, 2 * step)
        pairs.append((partial[*leading, lower], partial[*leading, upper]))
        step *= 2
    return pairs


def join_pairs(pairs: Sequence[tuple[Any, Any]], reduce: str, flush: bool = False) -> None:
    """Reduce all elements along a dimension into the first element; overwrite the rest.

    Args:
        pairs: The result of `pairs_of`.
        reduce: "sum", or for tensors "largest".
        flush: True sets denormal partial results to zero on every device.
    """
    for lower, upper in pairs:
        if reduce == "sum":
            # In place, for tensors and arrays.
            iadd(lower, upper)
        else:
            torch.maximum(lower, upper, out=lower)
        if flush:
            flush_denormals(lower)


def flush_denormals(values: Tensor) -> None:
    """Set denormals to zero."""
    values.masked_fill_(values.abs() < torch.finfo(values.dtype).tiny, 0.0)

"""Sums in one order for any number of ranks: a balanced tree over the micro-batches.

A rank sums a subtree; then the sums of all ranks are added. Each rank adds one shard of all sums
and sends the result to all ranks, with as much traffic as in a ring. Additions are elementwise, so
the bits do not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from thalweg.distribute.process_group import Ranks
from thalweg.indexed_slices import Gradient, IndexedSlices

Sums = list[Gradient]


def over_batches(low: int, high: int, gradients: Callable[[int], Sums]) -> Sums:
    """Return the sums of gradients over micro-batches `low` to `high - 1`, added in tree order.

    Args:
        low, high: Numbers of micro-batches; `high` is above `low`.
        gradients: `gradients(k)` returns the gradients of micro-batch k; called once per k, in
            ascending order.
    """
    if high - low == 1:
        return gradients(low)
    middle = (low + high) // 2
    halves = over_batches(low, middle, gradients), over_batches(middle, high, gradients)
    return list(map(_add_pair, *halves))


def _add_pair(first_sum: Gradient, right_sum: Gradient) -> Gradient:
    """Return the sum of two gradients; None counts as 0, sparse rows are concatenated."""
    if first_sum is None or right_sum is None:
        grad_sum = right_sum if first_sum is None else first_sum
        return grad_sum + 0.0 if isinstance(grad_sum, Tensor) else grad_sum  # -0.0 + 0.0 is 0.0
    if isinstance(first_sum, IndexedSlices) and isinstance(right_sum, IndexedSlices):
        values = torch.cat([first_sum.values, right_sum.values])
        indices = torch.cat([first_sum.indices, right_sum.indices.to(first_sum.indices.dtype)])
        return IndexedSlices(values, indices, first_sum.dense_shape)
    return first_sum + right_sum  # pyright: ignore[reportOperatorIssue]


def over_ranks(flat: Tensor, ranks: Ranks) -> Tensor:
    """Return the sum of a flat tensor over all ranks, in tree order, as a new tensor.

    All ranks must call this function. The number of ranks is a power of two.
    """
    size = -(-flat.numel() // ranks.size)
    padded = flat.new_zeros(size * ranks.size)
    padded[: flat.numel()] = flat
    shards = padded.view(ranks.size, size).unbind()
    rank_shards = [*flat.new_empty(ranks.size, size).unbind()]
    rank_shards[ranks.rank] = shards[ranks.rank]
    ranks.begin_exchanging(shards, rank_shards).wait()
    total = tree_sum(rank_shards)
    if total is not shards[ranks.rank]:
        shards[ranks.rank].copy_(total)
    ranks.begin_sharing(shards).wait()
    return padded[: flat.numel()]


def tree_sum(vectors: Sequence[Tensor]) -> Tensor:
    """Sum vectors in tree order, in place; return `vectors[0]`, which has the sum.

    All further vectors may be overwritten with partial sums.
    """
    partial_sums = list(vectors)
    while len(partial_sums) > 1:
        for first_sum, right_sum in zip(partial_sums[::2], partial_sums[1::2], strict=False):
            first_sum.add_(right_sum)
        partial_sums = partial_sums[::2]
    return partial_sums[0]

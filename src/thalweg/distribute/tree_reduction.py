"""Sums in one order on any number of ranks: a balanced tree over the numbers of micro-batches.

A rank sums a subtree, then the ranks' sums are the leaves of the tree's upper part. The vector is
cut into as many shards as there are ranks; each rank gets all ranks' sums of its shard, adds them
in the order of the tree, and sends the result to all: as much traffic as a ring's. An addition is
the same whatever else lies in the vector, so the bits are those of one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from thalweg.distribute.process_group import Ranks
from thalweg.indexed_slices import Gradient, IndexedSlices

Sums = list[Gradient]


def over_batches(low: int, high: int, gradients: Callable[[int], Sums]) -> Sums:
    """Return the sums over the micro-batches from `low` to `high` - 1, in the order of the tree.

    Args:
        low, high: Numbers; `high` is above `low`.
        gradients: Those of one micro-batch, given its number; called once for each, in order.

    No more of them live at the same time than the tree is deep, and one.
    """
    if high - low == 1:
        return gradients(low)
    middle = (low + high) // 2
    return add_sums(over_batches(low, middle, gradients), over_batches(middle, high, gradients))


def add_sums(ones: Sums, others: Sums) -> Sums:
    """Return the sums of two lists; rows follow one another, and None counts as zeros."""
    return [_add_pair(one, other) for one, other in zip(ones, others, strict=True)]


def _add_pair(one: Gradient, other: Gradient) -> Gradient:
    if one is None or other is None:
        found = other if one is None else one
        return found + 0.0 if isinstance(found, Tensor) else found  # -0.0 + 0.0 is 0.0
    if isinstance(one, IndexedSlices) and isinstance(other, IndexedSlices):
        values = torch.cat([one.values, other.values])
        indices = torch.cat([one.indices, other.indices.to(one.indices.dtype)])
        return IndexedSlices(values, indices, one.dense_shape)
    return one + other  # pyright: ignore[reportOperatorIssue]


def over_ranks(flat: Tensor, ranks: Ranks) -> Tensor:
    """Return the sum of the vectors of all ranks, in the order of the tree; their number is a power
    of 2.

    Args:
        flat: A vector.
        ranks: The ranks.
    """
    size = -(-flat.numel() // ranks.size)
    sent = flat.new_zeros(size * ranks.size)
    sent[: flat.numel()] = flat
    shards = sent.view(ranks.size, size).unbind()
    found = [*flat.new_empty(ranks.size, size).unbind()]
    found[ranks.rank] = shards[ranks.rank]
    ranks.begin_exchanging(shards, found).wait()
    total = in_pairs(found)
    if total is not shards[ranks.rank]:
        shards[ranks.rank].copy_(total)
    ranks.begin_sharing(shards).wait()
    return sent[: flat.numel()]


def in_pairs(vectors: Sequence[Tensor]) -> Tensor:
    """Return the sum of some vectors: neighbours are added, then their sums; one without one stays.

    The vectors are written to, and the first of them is the sum.
    """
    found = list(vectors)
    while len(found) > 1:
        for one, other in zip(found[::2], found[1::2], strict=False):
            one.add_(other)
        found = found[::2]
    return found[0]

"""Sums and means over replicas of values in nests (lists, tuples, dicts)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.execution_context import is_deferred
from thalweg._core.graph_mode import graph_mode
from thalweg._core.nest import leaves_of, packed
from thalweg.distribute.all_reduce_gradients import sum_pairs
from thalweg.distribute.context import Replicas
from thalweg.distribute.gradient_kinds import check_dtype
from thalweg.distribute.handshake import PendingCollective, report_error
from thalweg.distribute.reduce_op import ReduceOp
from thalweg.indexed_slices import IndexedSlices, as_gradient, values_of
from thalweg.variable import check_held, to_tensor


def all_reduce(strategy: Replicas, reduce_op: object, nest: object, axis: int | None = None) -> Any:
    """Return a nest of equal structure with each value's sum or mean over all ranks.

    All ranks must call this function. A symbolic tensor gives a symbolic tensor.

    Args:
        reduce_op: `ReduceOp.SUM` or `MEAN`, "sum" or "mean".
        nest: Tensors, `IndexedSlices`, numbers or None, or a nest of these. A value that is None on
            all ranks stays None; if it is None on some ranks only, ReplicaMismatchError is raised.
        axis: A dimension of each value that is reduced, too. None reduces over ranks only.
    """
    op = ReduceOp.of(reduce_op)
    leaves = list(leaves_of(nest))
    if is_deferred(*leaves):
        return packed(nest, iter(graph_mode().all_reduce(strategy, op, leaves, axis)))
    return packed(nest, iter(reduce_leaves(strategy, op, leaves, axis)))


def reduce_leaves(
    strategy: Replicas, op: ReduceOp, leaves: Sequence[object], axis: int | None
) -> list[Any]:
    """Return the sum or mean of each concrete value over all ranks, in order.

    Args:
        op: Sum or mean.
        leaves: The values of this rank. A value that is None must be None on all ranks.
        axis: A dimension of each value that is reduced, too. A mean then divides by the number of
            elements on all ranks. None reduces over ranks only.
    """
    if axis is None:
        return _reduce_concrete(strategy, op, leaves)
    with report_error(strategy.ranks, PendingCollective.VALUES):
        tensors = [None if leaf is None else _check_memory(to_tensor(leaf)) for leaf in leaves]
    sums = [None if tensor is None else tensor.sum(axis) for tensor in tensors]
    if op is ReduceOp.SUM:
        return _reduce_concrete(strategy, op, sums)
    counts = [
        None
        if tensor is None
        else torch.tensor(tensor.shape[axis], dtype=torch.int64, device=tensor.device)
        for tensor in tensors
    ]
    totals = _reduce_concrete(strategy, ReduceOp.SUM, [*sums, *counts])
    pairs = zip(totals[: len(sums)], totals[len(sums) :], strict=True)
    return [None if total is None else total / count for total, count in pairs]


def _reduce_concrete(strategy: Replicas, op: ReduceOp, leaves: Sequence[object]) -> list[Any]:
    """Return the sum or mean of each value over the ranks; all ranks must call this function.

    A None must be None on all ranks. An invalid value is reported to the other ranks.
    """
    with report_error(strategy.ranks, PendingCollective.VALUES):
        gradients = [_as_concrete(leaf) for leaf in leaves]
    if strategy.ranks.is_alone and op is ReduceOp.SUM:
        return gradients
    pairs = [(grad, None) for grad in gradients]
    totals = [total for total, _ in sum_pairs(pairs, strategy.ranks, strategy.sending)]
    if op is ReduceOp.SUM:
        return totals
    count = strategy.ranks.size
    return [None if total is None else total / count for total in totals]


def _as_concrete(leaf: object) -> Tensor | IndexedSlices | None:
    """Return a value as tensor, `IndexedSlices` or None; raise if ranks cannot add its dtype."""
    if leaf is not None and not isinstance(leaf, IndexedSlices):
        leaf = as_gradient(to_tensor(leaf))
    if leaf is None:
        return leaf
    check_dtype(leaf.dtype)
    if isinstance(leaf, IndexedSlices):
        _check_memory(leaf.indices)
    _check_memory(values_of(leaf))
    return leaf


def _check_memory(tensor: Tensor) -> Tensor:
    """Return the tensor; raise LayoutError if its memory was freed."""
    check_held(tensor, f"A value of shape {tuple(tensor.shape)}")
    return tensor

"""Sums and means over replicas of whatever a function returns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg.distribute.context import Replicas
from thalweg.distribute.kinds import check_dtype
from thalweg.distribute.message import Doing, tell, telling
from thalweg.distribute.reduce_op import ReduceOp
from thalweg.distribute.reducing import summed
from thalweg.graph import Output, SymbolicSlices, executing_eagerly, is_symbolic, operation
from thalweg.graph.nest import leaves_of, packed
from thalweg.indexed_slices import IndexedSlices, as_gradient, values_of
from thalweg.variable import check_held, to_tensor


def reduced(strategy: Replicas, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
    """A nest of sums or means over all replicas, and over a dimension if `axis` is one.

    See `ReplicaContext.all_reduce` and `Strategy.reduce`.
    """
    op = ReduceOp.of(reduce_op)
    leaves = list(leaves_of(value))
    if not executing_eagerly() or any(map(is_symbolic, leaves)):
        return packed(value, iter(_in_graph(strategy, op, leaves, axis)))
    return packed(value, iter(_reduced(strategy, op, leaves, axis)))


def _reduced(
    strategy: Replicas, op: ReduceOp, leaves: Sequence[Any], axis: int | None
) -> list[Any]:
    if axis is None:
        return _now(strategy, op, leaves)
    with telling(strategy.ranks, Doing.VALUES):
        tensors = [None if leaf is None else _held(to_tensor(leaf)) for leaf in leaves]
    sums = [None if each is None else each.sum(axis) for each in tensors]
    if op is ReduceOp.SUM:
        return _now(strategy, op, sums)
    counts = [
        None if each is None else torch.tensor(each.shape[axis], device=each.device)
        for each in tensors
    ]
    found = _now(strategy, ReduceOp.SUM, [*sums, *counts])
    pairs = zip(found[: len(sums)], found[len(sums) :], strict=True)
    return [None if one is None else one / many for one, many in pairs]


def _now(strategy: Replicas, op: ReduceOp, leaves: Sequence[Any]) -> list[Any]:
    with telling(strategy.ranks, Doing.VALUES):
        gradients = [_concrete(leaf) for leaf in leaves]
    if strategy.ranks.is_alone and op is ReduceOp.SUM:
        return gradients
    pairs = [(grad, None) for grad in gradients]
    found = [total for total, _ in summed(pairs, strategy.ranks, strategy.sending)]
    if op is ReduceOp.SUM:
        return found
    count = strategy.ranks.size
    return [None if total is None else total / count for total in found]


def _concrete(leaf: Any) -> Tensor | IndexedSlices | None:
    if leaf is not None and not isinstance(leaf, IndexedSlices):
        leaf = as_gradient(to_tensor(leaf))
    if leaf is None:
        return leaf
    check_dtype(leaf.dtype)
    if isinstance(leaf, IndexedSlices):
        _held(leaf.indices)
    _held(values_of(leaf))
    return leaf


def _held(tensor: Tensor) -> Tensor:
    check_held(tensor, f"A value of shape {tuple(tensor.shape)}")
    return tensor


def _in_graph(
    strategy: Replicas, op: ReduceOp, leaves: Sequence[Any], axis: int | None
) -> list[Any]:
    """The same as an operation of the graph, which each rank runs at the same place."""
    present = [place for place, leaf in enumerate(leaves) if leaf is not None]
    given = [_symbol(leaves[place]) for place in present]
    made = operation(
        lambda values: _reduced(strategy, op, values, axis),
        [given],
        "all_reduce",
        kind="pure",
        outputs=[_known(leaf, op, axis) for leaf in given],
    )
    ranks = strategy.ranks
    for output in made[:1]:  # what fails before it in a run is told to the ranks that wait there
        output.op.abandoned = partial(tell, ranks, Doing.VALUES)
    found: list[Any] = [None] * len(leaves)
    for place, output in zip(present, made, strict=True):
        is_sparse = isinstance(leaves[place], SymbolicSlices | IndexedSlices)
        output.may_be_sparse = is_sparse
        found[place] = SymbolicSlices.of(output) if is_sparse else output
    return found


def _symbol(leaf: Any) -> Any:
    is_one = is_symbolic(leaf) or isinstance(leaf, IndexedSlices)
    return leaf if is_one else to_tensor(leaf)


def _known(leaf: Any, op: ReduceOp, axis: int | None) -> Output:
    """What is known of a result before a run: only means and sums along an axis change dtypes."""
    shape = getattr(leaf, "shape", None) if axis is None else None
    if leaf.dtype is None:
        return Output(None, shape, ())
    like = torch.zeros(1, dtype=leaf.dtype)
    like = like if axis is None else like.sum(0)
    return Output((like if op is ReduceOp.SUM else like / 1).dtype, shape, ())

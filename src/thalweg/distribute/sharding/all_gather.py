"""All-gather of updated parts of variables after a sharded step."""

# torch does not annotate `unique` and `tolist`.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from thalweg._engines import layout
from thalweg.distribute.buckets import copy_all, plan_buckets
from thalweg.distribute.process_group import Pending, Ranks
from thalweg.distribute.sharding.shards import Shards, flatten_like
from thalweg.indexed_slices import IndexedSlices

# Bytes from which a part is sent without a copy, which would take longer.
_LARGE = 2**18


def join_parts(shards: Shards, tensors: Sequence[tuple[Tensor, Tensor, object]], size: int) -> None:
    """Send this rank's parts of each target; overwrite the parts of other ranks, in place.

    All ranks must call this function, with the same variables in the same order.

    Args:
        shards: The assignment of elements to ranks.
        tensors: (variable, target, gradient) triples. The target is the variable, or a tensor of
            its shape. If the gradient is IndexedSlices, only the gradient's rows are exchanged.
        size: The most bytes of a message of several tensors. A large tensor is sent alone.
    """
    dense: list[tuple[int, Tensor]] = []
    for index, (var, updated, grad) in enumerate(tensors):
        if isinstance(grad, IndexedSlices):
            _join_rows(shards, var, updated.detach(), grad.indices)
        else:
            dense.append((index, updated.detach()))

    def make_parcel(indices: Sequence[int], tensors_to_send: Sequence[Tensor]) -> _Parcel:
        return _Parcel(shards, [tensors[index][0] for index in indices], tensors_to_send)

    large = {index for index, tensor in dense if tensor.nbytes >= _LARGE * shards.ranks.size}
    parcels = [make_parcel([index], [tensor]) for index, tensor in dense if index in large]
    parcels += plan_buckets(
        [tensor for tensor in dense if tensor[0] not in large], size, make_parcel
    )
    waiting: list[_Parcel] = []
    for parcel in parcels:
        parcel.send(shards.ranks)
        waiting.append(parcel)
        # At most two parcels are in flight, to limit memory.
        if len(waiting) > 1:
            waiting.pop(0).take()
    for parcel in waiting:
        parcel.take()


class _Parcel:
    """Tensors whose parts are sent in one message per rank."""

    def __init__(
        self, shards: Shards, variables: Sequence[Tensor], updated: Sequence[Tensor]
    ) -> None:
        self._updated = updated
        self._flat = [flatten_like(tensor, tensor) for tensor in updated]
        self._views: list[list[Tensor]] = [[] for _ in range(shards.ranks.size)]
        for var, elements in zip(variables, self._flat, strict=True):
            for rank, start, stop in shards.pieces(var):
                self._views[rank].append(elements[start:stop])
        self._rank = shards.ranks.rank
        self._buffers: list[Tensor] = []
        self._pending: Pending | None = None

    def send(self, ranks: Ranks) -> None:
        """Start to exchange the parts. Call `take` to finish."""
        empty = self._flat[0].new_empty
        for rank, views in enumerate(self._views):
            if _is_sent_as_it_is(views):
                self._buffers.append(views[0])
            elif rank == self._rank and views:
                self._buffers.append(torch.cat(views))
            else:
                self._buffers.append(empty(sum(view.numel() for view in views)))
        self._pending = ranks.begin_sharing(self._buffers)

    def take(self) -> None:
        """Wait for the parts of other ranks; write the parts into the tensors."""
        if self._pending is not None:
            self._pending.wait()
        for rank, (views, buffer) in enumerate(zip(self._views, self._buffers, strict=True)):
            if rank != self._rank and not _is_sent_as_it_is(views):
                copy_all(views, torch.split(buffer, [tensor.numel() for tensor in views]))
        # Of a tensor with gaps in memory, `flatten_like` may have copied the elements.
        for tensor, elements in zip(self._updated, self._flat, strict=True):
            if not layout.is_dense(tensor):
                tensor.copy_(elements.view(tensor.shape))


def _is_sent_as_it_is(views: Sequence[Tensor]) -> bool:
    """Return True if the parts are one contiguous view, which is sent without a copy."""
    return len(views) == 1 and views[0].is_contiguous()


def _join_rows(shards: Shards, var: Tensor, updated: Tensor, indices: Tensor) -> None:
    """Exchange updated rows: send this rank's rows, write the rows of other ranks into `updated`.

    Args:
        shards: The assignment of elements to ranks.
        updated: The variable `var`, or a tensor of its shape.
        indices: The row indices of the gradient, equal on all ranks.
    """
    row, ranks = var.shape[1:].numel(), shards.ranks
    pieces = shards.pieces(var)
    if not pieces:
        return
    touched = cast(Tensor, torch.unique(indices.long()))
    buffers = [updated[:0]] * ranks.size
    rows_by_rank: dict[int, Tensor] = {}
    for rank, start, stop in pieces:
        bounds = [start // row, stop // row]
        ends = torch.tensor(bounds, dtype=torch.int64, device=touched.device)
        begin, end = cast("list[int]", torch.searchsorted(touched, ends).tolist())
        rows_by_rank[rank] = touched[begin:end]
        is_local = rank == ranks.rank
        shape = (end - begin, *updated.shape[1:])
        buffers[rank] = updated[rows_by_rank[rank]] if is_local else updated.new_empty(shape)
    ranks.begin_sharing(buffers).wait()
    for rank, rows in rows_by_rank.items():
        if rank != ranks.rank:
            updated.index_copy_(0, rows, buffers[rank])

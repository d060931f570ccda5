"""Exchange of the parts of variables after a step: each rank sends its parts to all others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thalweg._engines import layout
from thalweg.distribute.buckets import copy_all, plan_buckets
from thalweg.distribute.process_group import Pending, Ranks
from thalweg.distribute.sharding.shards import Shards, flatten_like
from thalweg.indexed_slices import IndexedSlices

_LARGE = 2**18  # bytes of a part that is sent from where it lies: to copy it would take longer


def join_parts(shards: Shards, tensors: Sequence[tuple[Tensor, Tensor, object]], size: int) -> None:
    """Set tensors to what the ranks have made of their parts.

    Args:
        shards: Who has what.
        tensors: A variable, what was updated, which is the variable or has its elements, and the
            gradient: if that has rows, these rows alone were updated.
        size: Bytes that are sent together.
    """
    dense: list[tuple[int, Tensor]] = []
    for place, (var, updated, grad) in enumerate(tensors):
        if isinstance(grad, IndexedSlices):
            _join_rows(shards, var, updated.detach(), grad.indices)
        else:
            dense.append((place, updated.detach()))

    def make_parcel(places: Sequence[int], own: Sequence[Tensor]) -> _Parcel:
        return _Parcel(shards, [tensors[place][0] for place in places], own)

    large = {place for place, each in dense if each.nbytes >= _LARGE * shards.ranks.size}
    parcels = [make_parcel([place], [each]) for place, each in dense if place in large]
    parcels += plan_buckets([each for each in dense if each[0] not in large], size, make_parcel)
    waiting: list[_Parcel] = []
    for parcel in parcels:
        parcel.send(shards.ranks)
        waiting.append(parcel)
        if len(waiting) > 1:  # for the memory that they take
            waiting.pop(0).take()
    for parcel in waiting:
        parcel.take()


class _Parcel:
    """Tensors whose parts are sent together."""

    def __init__(self, shards: Shards, owners: Sequence[Tensor], updated: Sequence[Tensor]) -> None:
        self._updated = updated
        self._flat = [flatten_like(each, each) for each in updated]
        self._views: list[list[Tensor]] = [[] for _ in range(shards.ranks.size)]
        for var, elements in zip(owners, self._flat, strict=True):
            for rank, start, stop in shards.pieces(var):
                self._views[rank].append(elements[start:stop])
        self._rank = shards.ranks.rank
        self._buffers: list[Tensor] = []
        self._under_way: Pending | None = None

    def send(self, ranks: Ranks) -> None:
        empty = self._flat[0].new_empty
        for rank, views in enumerate(self._views):
            if _is_sent_as_it_is(views):
                self._buffers.append(views[0])
            elif rank == self._rank and views:
                self._buffers.append(torch.cat(views))
            else:
                self._buffers.append(empty(sum(each.numel() for each in views)))
        self._under_way = ranks.begin_sharing(self._buffers)

    def take(self) -> None:
        if self._under_way is not None:
            self._under_way.wait()
        for rank, (views, buffer) in enumerate(zip(self._views, self._buffers, strict=True)):
            if rank != self._rank and not _is_sent_as_it_is(views):
                copy_all(views, buffer.split([each.numel() for each in views]))
        for each, elements in zip(self._updated, self._flat, strict=True):
            if not layout.is_dense(each):
                each.copy_(elements.view(each.shape))


def _is_sent_as_it_is(views: Sequence[Tensor]) -> bool:
    """Return whether it is sent from where it lies, and taken there, which needs a run of
    memory.
    """
    return len(views) == 1 and views[0].is_contiguous()


def _join_rows(shards: Shards, var: Tensor, updated: Tensor, indices: Tensor) -> None:
    row, ranks = var.shape[1:].numel(), shards.ranks
    pieces = shards.pieces(var)
    if not pieces:
        return
    touched = torch.unique(indices.long())
    buffers = [updated[:0]] * ranks.size
    places: dict[int, Tensor] = {}
    for rank, start, stop in pieces:
        bounds = [start // row, stop // row]
        ends = torch.tensor(bounds, dtype=torch.int64, device=touched.device)
        begin, end = torch.searchsorted(touched, ends).tolist()
        places[rank] = touched[begin:end]
        is_own = rank == ranks.rank
        shape = (end - begin, *updated.shape[1:])
        buffers[rank] = updated[places[rank]] if is_own else updated.new_empty(shape)
    ranks.begin_sharing(buffers).wait()
    for rank, rows in places.items():
        if rank != ranks.rank:
            updated.index_copy_(0, rows, buffers[rank])

"""Tensors that ranks have parts of, sent to one of them, and from there back to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.distribute.process_group import Ranks


class GatheredTensor(NamedTuple):
    """A tensor that ranks have parts of.

    Attributes:
        owner: The rank that has it as a whole.
        ranks: Those that have parts.
        dim: What these are cut along; None if each is all of it.
        local: This rank's part.
        whole: The whole, on its owner.
    """

    owner: int
    ranks: range
    dim: int | None
    local: Tensor
    whole: Any

    def part(self, rank: int) -> Tensor:
        """Return the part of the whole tensor that a rank has."""
        if self.dim is None:
            return self.whole
        place = rank - self.ranks[0]
        return self.whole.narrow(self.dim, *_bounds(self.whole.shape[self.dim], place, self.ranks))


def gather(ranks: Ranks, tensors: Sequence[GatheredTensor], device: torch.device) -> None:
    """Set wholes to what the ranks have of them; all ranks call this with the same tensors.

    Args:
        ranks: The ranks.
        tensors: The tensors.
        device: Where those that more than one rank has are.
    """
    sent, taken = _lists(ranks), _lists(ranks)
    for each in tensors:
        if each.owner != ranks.rank:
            if each.dim is not None:
                sent[each.owner].append(each.local)
            continue
        each.part(ranks.rank).copy_(each.local)
        if each.dim is not None:
            for rank in each.ranks:
                taken[rank] += [each.part(rank)] if rank != each.owner else []
    _exchange(ranks, sent, taken, device)


def scatter(ranks: Ranks, tensors: Sequence[GatheredTensor], device: torch.device) -> None:
    """Set parts to what the owners have of them, in the same way."""
    sent, taken = _lists(ranks), _lists(ranks)
    for each in tensors:
        if each.owner != ranks.rank:
            taken[each.owner].append(each.local)
            continue
        each.local.copy_(each.part(ranks.rank))
        for rank in each.ranks:
            sent[rank] += [each.part(rank)] if rank != each.owner else []
    _exchange(ranks, sent, taken, device)


def part_shape(shape: tuple[int, ...], rank: int, ranks: range) -> tuple[int, ...]:
    """Return the shape that a rank has of a tensor which is cut along its first dimension, if
    any.
    """
    return (_bounds(shape[0], rank - ranks[0], ranks)[1], *shape[1:]) if shape else shape


def _lists(ranks: Ranks) -> list[list[Tensor]]:
    return [[] for _ in range(ranks.size)]


def _bounds(length: int, place: int, ranks: range) -> tuple[int, int]:
    """Where a part begins, and how long it is, as torch cuts."""
    step = -(-length // len(ranks))
    start = min(place * step, length)
    return start, min(step, length - start)


def _exchange(
    ranks: Ranks, sent: list[list[Tensor]], taken: list[list[Tensor]], device: torch.device
) -> None:
    """Send tensors to each rank, and set others to those that it sends, all in one message."""
    sizes = [sum(each.nbytes for each in own) for own in taken]
    buffers = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
    ranks.begin_exchanging([_packed(own, device) for own in sent], buffers).wait()
    for own, buffer in zip(taken, buffers, strict=True):
        start = 0
        for each in _by_width(own):
            found = buffer[start : start + each.nbytes].view(each.dtype)
            each.copy_(found.view(each.shape))
            start += each.nbytes


def _by_width(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Wide types first, so that each tensor begins where one of its type may in a row of bytes."""
    return sorted(tensors, key=lambda each: -each.element_size())


def _packed(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """The bytes of tensors, one after the other."""
    if not tensors:
        return torch.empty(0, dtype=torch.uint8, device=device)
    flat = [each.contiguous().view(-1) for each in _by_width(tensors)]
    return torch.cat([each.view(torch.uint8) for each in flat])

"""Gathering of tensors to the ranks that own them, and scattering back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.distribute.process_group import Ranks


class GatheredTensor(NamedTuple):
    """Tensor of which several ranks have parts.

    Attributes:
        owner: The rank that holds the full tensor.
        ranks: The ranks that have parts.
        dim: The dimension that is cut; None if each part is the full tensor.
        local: This rank's part.
        whole: The full tensor on its owner, else None.
    """

    owner: int
    ranks: range
    dim: int | None
    local: Tensor
    whole: Any

    def part(self, rank: int) -> Tensor:
        """Return the view of the full tensor that is a rank's part."""
        if self.dim is None:
            return self.whole
        index = rank - self.ranks[0]
        return self.whole.narrow(self.dim, *_bounds(self.whole.shape[self.dim], index, self.ranks))


def gather(ranks: Ranks, tensors: Sequence[GatheredTensor], device: torch.device) -> None:
    """Copy the parts of all ranks into full tensors; all ranks call this with the same tensors.

    Args:
        ranks: The ranks.
        tensors: The tensors.
        device: The device of tensors with several ranks.
    """
    outgoing, incoming = _lists_by_rank(ranks), _lists_by_rank(ranks)
    for tensor in tensors:
        if tensor.owner != ranks.rank:
            if tensor.dim is not None:
                outgoing[tensor.owner].append(tensor.local)
            continue
        tensor.part(ranks.rank).copy_(tensor.local)
        if tensor.dim is not None:
            for rank in tensor.ranks:
                incoming[rank] += [tensor.part(rank)] if rank != tensor.owner else []
    _exchange(ranks, outgoing, incoming, device)


def scatter(ranks: Ranks, tensors: Sequence[GatheredTensor], device: torch.device) -> None:
    """Copy the owners' full tensors into the parts of all ranks; see `gather`."""
    outgoing, incoming = _lists_by_rank(ranks), _lists_by_rank(ranks)
    for tensor in tensors:
        if tensor.owner != ranks.rank:
            incoming[tensor.owner].append(tensor.local)
            continue
        tensor.local.copy_(tensor.part(ranks.rank))
        for rank in tensor.ranks:
            outgoing[rank] += [tensor.part(rank)] if rank != tensor.owner else []
    _exchange(ranks, outgoing, incoming, device)


def part_shape(shape: tuple[int, ...], rank: int, ranks: range) -> tuple[int, ...]:
    """Return the shape of a rank's part of a tensor that is cut along dimension 0, if any."""
    return (_bounds(shape[0], rank - ranks[0], ranks)[1], *shape[1:]) if shape else shape


def _lists_by_rank(ranks: Ranks) -> list[list[Tensor]]:
    return [[] for _ in range(ranks.size)]


def _bounds(length: int, index: int, ranks: range) -> tuple[int, int]:
    """Return the start and the length of a part, as torch cuts dimensions."""
    step = -(-length // len(ranks))
    start = min(index * step, length)
    return start, min(step, length - start)


def _exchange(
    ranks: Ranks, outgoing: list[list[Tensor]], incoming: list[list[Tensor]], device: torch.device
) -> None:
    """Send outgoing tensors to each rank and receive incoming ones, in one message each."""
    sizes = [sum(tensor.nbytes for tensor in tensors) for tensors in incoming]
    buffers = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
    ranks.begin_exchanging([_pack_bytes(tensors, device) for tensors in outgoing], buffers).wait()
    for tensors, buffer in zip(incoming, buffers, strict=True):
        start = 0
        for tensor in _sort_by_width(tensors):
            received_bytes = buffer[start : start + tensor.nbytes].view(tensor.dtype)
            tensor.copy_(received_bytes.view(tensor.shape))
            start += tensor.nbytes


def _sort_by_width(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors with wide dtypes first, so that each is aligned in a buffer of bytes."""
    return sorted(tensors, key=lambda tensor: -tensor.element_size())


def _pack_bytes(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return the bytes of tensors in one contiguous buffer."""
    if not tensors:
        return torch.empty(0, dtype=torch.uint8, device=device)
    flat = [tensor.contiguous().view(-1) for tensor in _sort_by_width(tensors)]
    return torch.cat([tensor.view(torch.uint8) for tensor in flat])

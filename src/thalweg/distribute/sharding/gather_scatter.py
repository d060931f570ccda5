"""Gathering of tensors to the ranks that own them, and scattering back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding.shard_index import ShardIndex, full_index


class GatheredTensor(NamedTuple):
    """Tensor whose parts are on several ranks.

    Attributes:
        owner: The rank that holds the full tensor.
        shards: {rank: indices of the rank's part in the full tensor}.
        local: This rank's part, or None. If `local is full_tensor`, nothing is copied.
        full_tensor: The full tensor on the owner; None on all other ranks.
    """

    owner: int
    shards: Mapping[int, ShardIndex]
    local: Any
    full_tensor: Any


def gather(ranks: Ranks, tensors: Sequence[GatheredTensor], device: torch.device) -> None:
    """Fill `full_tensor` of each tensor on its owner, in place, from the parts of all ranks.

    All ranks must call this function.

    Args:
        tensors: The tensors, in the same order on all ranks.
        device: The device of the messages.
    """
    outgoing: list[list[Tensor]] = [[] for _ in range(ranks.size)]
    incoming: list[list[_Target]] = [[] for _ in range(ranks.size)]
    for tensor in tensors:
        if tensor.owner != ranks.rank:
            if ranks.rank in tensor.shards:
                outgoing[tensor.owner].append(tensor.local)
            continue
        for rank, shard_index in tensor.shards.items():
            if tensor.local is tensor.full_tensor:
                continue
            if rank == ranks.rank:
                shard_index.write(tensor.full_tensor, tensor.local)
            else:
                incoming[rank].append(_Target(tensor.full_tensor, shard_index))
    _exchange(ranks, outgoing, incoming, device)


def scatter(ranks: Ranks, tensors: Sequence[GatheredTensor], device: torch.device) -> None:
    """Fill `local` of each tensor on all ranks, in place, from the owner's `full_tensor`.

    All ranks must call this function.

    Args:
        tensors: The tensors, in the same order on all ranks.
        device: The device of the messages.
    """
    outgoing: list[list[Tensor]] = [[] for _ in range(ranks.size)]
    incoming: list[list[_Target]] = [[] for _ in range(ranks.size)]
    for tensor in tensors:
        if tensor.owner != ranks.rank:
            if ranks.rank in tensor.shards:
                incoming[tensor.owner].append(_Target(tensor.local, full_index(tensor.local.shape)))
            continue
        for rank, shard_index in tensor.shards.items():
            if tensor.local is tensor.full_tensor:
                continue
            shard = shard_index.read(tensor.full_tensor)
            if rank == ranks.rank:
                tensor.local.copy_(shard)
            else:
                outgoing[rank].append(shard)
    _exchange(ranks, outgoing, incoming, device)


class _Target(NamedTuple):
    """Tensor to fill at `shard_index` with a part that another rank sends."""

    tensor: Tensor
    shard_index: ShardIndex

    @property
    def nbytes(self) -> int:
        return self.tensor.element_size() * prod(self.shard_index.shape)


def _exchange(
    ranks: Ranks, outgoing: list[list[Tensor]], incoming: list[list[_Target]], device: torch.device
) -> None:
    """Send tensors `outgoing[r]` to each rank r; fill targets `incoming[r]` with its tensors."""
    sizes = [sum(target.nbytes for target in targets) for targets in incoming]
    buffers = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
    ranks.begin_exchanging([_pack_bytes(tensors, device) for tensors in outgoing], buffers).wait()
    for targets, buffer in zip(incoming, buffers, strict=True):
        start = 0
        # Wide dtypes come first, so that each tensor is aligned in the buffer.
        for target in sorted(targets, key=lambda target: -target.tensor.element_size()):
            received_bytes = buffer[start : start + target.nbytes].view(target.tensor.dtype)
            target.shard_index.write(target.tensor, received_bytes.view(target.shard_index.shape))
            start += target.nbytes


def _pack_bytes(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return the bytes of tensors in one contiguous uint8 tensor, wide dtypes first."""
    if not tensors:
        return torch.empty(0, dtype=torch.uint8, device=device)
    # Sorting is stable: sender and receiver keep the order of equally wide dtypes.
    tensors = sorted(tensors, key=lambda tensor: -tensor.element_size())
    return torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors])

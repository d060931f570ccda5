"""Reduce-scatter of dense gradients: each rank receives the sums of its parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thalweg._base.context_managers import outside_inference
from thalweg.distribute.buckets import Bucket, copy_all, holders_of
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding.shards import Shards, flatten_like
from thalweg.distribute.tree_reduction import tree_sum


class Scatter(Bucket):
    """Variant of `Bucket` that returns only this rank's part of each sum.

    A rank receives its part from all ranks and adds in pairs. The order of additions does not
    depend on the number of tensors per message.

    Args:
        shards: The assignment of elements to ranks.
        variables: All variables by index.
        indices: The indices of the tensors.
        templates: The tensors, of one dtype and on one device; their values do not matter.
    """

    def __init__(
        self,
        shards: Shards,
        variables: Sequence[Tensor],
        indices: Sequence[int],
        templates: Sequence[Tensor],
    ) -> None:
        self.indices = list(indices)
        self._variables = {index: variables[index] for index in indices}
        self._shards = shards
        pieces = [
            (piece, index) for index in indices for piece in shards.pieces(self._variables[index])
        ]
        # The sort is stable: pieces of one rank keep their order.
        pieces.sort(key=lambda pair: pair[0].rank)
        self._sizes = [0] * shards.ranks.size
        # A later step outside of inference mode may refill the memory.
        with outside_inference():
            self._flat = templates[0].new_empty(
                sum(piece.stop - piece.start for piece, _ in pieces)
            )
        self._targets: dict[int, list[tuple[slice, Tensor]]] = {index: [] for index in indices}
        begin = 0
        for (rank, start, stop), index in pieces:
            target = self._flat[begin : begin + stop - start]
            self._targets[index].append((slice(start, stop), target))
            self._sizes[rank] += stop - start
            begin += stop - start
        self._pieces = torch.split(self._flat, self._sizes)
        rank, num_remote = shards.ranks.rank, shards.ranks.size - 1
        local_shard = self._pieces[rank]
        with outside_inference():
            self._remote_shards = local_shard.new_empty(num_remote, local_shard.numel())
        self._rank_shards = [*self._remote_shards.unbind()]
        self._rank_shards.insert(rank, local_shard)

    def put(self, indices: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Copy tensors into the send buffers; `indices` has the variable's index of each tensor."""
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for index, tensor in zip(indices, tensors, strict=True):
            elements = flatten_like(tensor, self._variables[index])
            for piece, target in self._targets[index]:
                targets.append(target)
                sources.append(elements[piece])
        copy_all(targets, sources)

    def clear(self, index: int) -> None:
        for _, target in self._targets[index]:
            target.zero_()

    def send(self, ranks: Ranks, ordered: bool) -> None:
        """Start to send each rank its parts; sums are added in tree order for any `ordered`."""
        self._pending = ranks.begin_exchanging(self._pieces, self._rank_shards)

    def wait_for_sums(self) -> dict[int, Tensor]:
        """Wait for the sums; return {index of a tensor: this rank's part of the sum}.

        Raises:
            RuntimeError: Nothing was sent.
        """
        if self._pending is None:
            raise RuntimeError("nothing was sent")
        self.wait()
        total = tree_sum(self._rank_shards)
        local_sums: dict[int, Tensor] = {}
        begin = 0
        for index, var in self._variables.items():
            piece = self._shards.own_slice(var)
            size = piece.stop - piece.start
            local_sums[index] = self._shards.as_part(total[begin : begin + size], var)
            begin += size
        return local_sums

    def count_holders(self) -> int:
        return sum(map(holders_of, (self._flat, self._remote_shards)))

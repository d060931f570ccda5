"""Dense gradients on their way to the ranks that have their variables: each gets its part alone."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from thalweg._base.context_managers import outside_inference
from thalweg.distribute.buckets import copy_all, holders_of
from thalweg.distribute.process_group import Pending, Ranks
from thalweg.distribute.sharding.shards import Shards, flatten_like
from thalweg.distribute.tree_reduction import in_pairs


class Scatter:
    """Variant of `Bucket` that returns only this rank's part of each sum.

    A rank gets the parts of all ranks and adds them itself, in pairs: an order that does not depend
    on how many tensors are sent together.

    Args:
        shards: The parts of each rank.
        variables: All variables, by their numbers.
        places: Numbers of those whose gradients are sent.
        like: Tensors of their shapes, of one dtype and on one device.
    """

    def __init__(
        self,
        shards: Shards,
        variables: Sequence[Tensor],
        places: Sequence[int],
        like: Sequence[Tensor],
    ) -> None:
        self.places = list(places)
        self._variables = {place: variables[place] for place in places}
        self._shards = shards
        pieces = [
            (piece, place) for place in places for piece in shards.pieces(self._variables[place])
        ]
        pieces.sort(key=lambda each: each[0].rank)  # those of a rank stay in order
        self._sizes = [0] * shards.ranks.size
        with outside_inference():  # it may be filled again outside of it
            self._flat = like[0].new_empty(sum(piece.stop - piece.start for piece, _ in pieces))
        self._targets: dict[int, list[tuple[slice, Tensor]]] = {place: [] for place in places}
        begin = 0
        for (rank, start, stop), place in pieces:
            target = self._flat[begin : begin + stop - start]
            self._targets[place].append((slice(start, stop), target))
            self._sizes[rank] += stop - start
            begin += stop - start
        self._parts = self._flat.split(self._sizes)
        rank, others = shards.ranks.rank, shards.ranks.size - 1
        own = self._parts[rank]
        with outside_inference():
            self._taken = own.new_empty(others, own.numel())
        self._found = [*self._taken.unbind()]
        self._found.insert(rank, own)
        self._arriving: Pending | None = None

    def put(self, places: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """See `Sent`."""
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for place, tensor in zip(places, tensors, strict=True):
            elements = flatten_like(tensor, self._variables[place])
            for piece, target in self._targets[place]:
                targets.append(target)
                sources.append(elements[piece])
        copy_all(targets, sources)

    def clear(self, place: int) -> None:
        """See `Sent`."""
        for _, target in self._targets[place]:
            target.zero_()

    def send(self, ranks: Ranks, ordered: bool) -> None:
        """See `Sent`; the order is that of a tree in either case."""
        self._arriving = ranks.begin_exchanging(self._parts, self._found)

    def wait(self) -> None:
        """See `Sent`."""
        if self._arriving is not None:
            self._arriving.wait()
            self._arriving = None

    def wait_for_sums(self) -> dict[int, Tensor]:
        """See `Sent`; they have the shapes of the parts."""
        if self._arriving is None:
            raise RuntimeError("nothing was sent")
        self.wait()
        total = in_pairs(self._found)
        found: dict[int, Tensor] = {}
        begin = 0
        for place, var in self._variables.items():
            piece = self._shards.own_slice(var)
            size = piece.stop - piece.start
            found[place] = self._shards.as_part(total[begin : begin + size], var)
            begin += size
        return found

    def count_holders(self) -> int:
        """See `Sent`."""
        return sum(map(holders_of, (self._flat, self._taken)))

"""Assignment of the elements of a variable to ranks: arithmetic alone, the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from thalweg._engines.reduction_order import LEAF


class Piece(NamedTuple):
    """Elements of a variable, in row-major order, that belong to one rank.

    Attributes:
        rank: The rank.
        start, stop: The first one, and the one after the last.
    """

    rank: int
    start: int
    stop: int


def pieces_of(size: int, loads: Sequence[int], unit: int = LEAF) -> list[Piece]:
    """Return a variable of so many elements, cut where leaves end: at most one piece for each rank.

    Where loads differ by no more than a leaf takes, they do so afterwards. So no rank ever has more
    than its share of all of it and a leaf.

    Args:
        size: The number of elements.
        loads: How much each rank has of other variables.
        unit: How many elements stay together: those of a leaf, or all.
    """
    if not size:
        return []
    units = -(-size // unit)
    each, more = divmod(units, len(loads))
    order = sorted(range(len(loads)), key=lambda rank: (loads[rank], rank))
    counts = {rank: each + (place < more) for place, rank in enumerate(order)}
    # The last unit may be a short one: it is for the rank that has most of those that get one.
    last = order[more - 1]
    ranks = [rank for rank in range(len(loads)) if counts[rank] and rank != last]
    found: list[Piece] = []
    for rank in [*ranks, last]:
        start = found[-1].stop if found else 0
        found.append(Piece(rank, start, min(start + counts[rank] * unit, size)))
    return found

"""Assignment of the elements of a variable to ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from thalweg._engines.reduction_order import LEAF


class Piece(NamedTuple):
    """Range of elements of a variable, in row-major order, of one rank.

    Attributes:
        rank: The rank.
        start, stop: The first element, and the one after the last.
    """

    rank: int
    start: int
    stop: int


def pieces_of(size: int, loads: Sequence[int], unit: int = LEAF) -> list[Piece]:
    """Divide the elements of a variable among ranks, in pieces that end where leaves of reductions
    end.

    Loads of ranks that differ by at most a leaf still do afterwards. Return at most one piece per
    rank, in the order of elements.

    Args:
        size: The number of elements.
        loads: The bytes that each rank has of other variables.
        unit: The number of elements that stay together: those of a leaf, or all.
    """
    if not size:
        return []
    units = -(-size // unit)
    base_count, num_longer = divmod(units, len(loads))
    order = sorted(range(len(loads)), key=lambda rank: (loads[rank], rank))
    counts = {rank: base_count + (position < num_longer) for position, rank in enumerate(order)}
    # The last unit may be a short one: it is for the rank that has most of those that get one.
    last_rank = order[num_longer - 1]
    ranks = [rank for rank in range(len(loads)) if counts[rank] and rank != last_rank]
    pieces: list[Piece] = []
    for rank in [*ranks, last_rank]:
        start = pieces[-1].stop if pieces else 0
        pieces.append(Piece(rank, start, min(start + counts[rank] * unit, size)))
    return pieces

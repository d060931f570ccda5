"""Sweep over learning rates: contestants race with multiples of their rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from thalweg._cli.race.contestant import Contestant
from thalweg._cli.race.errors import RaceError
from thalweg._cli.race.run import Lane, Race, rate_of

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)


def enter_rates(contestants: Sequence[Contestant]) -> list[Contestant]:
    """Return a copy of each contestant for each of `FACTORS`, with the learning rate multiplied.

    Raises:
        RaceError: A learning rate is not a number, or cannot be set.
    """
    entries: list[Contestant] = []
    for contestant in contestants:
        rate = rate_of(contestant, contestant.make(contestant.learning_rate))
        if rate is None:
            raise RaceError(
                f"the learning rate of {contestant.name} is no number, so none is near it."
            )
        for factor in FACTORS:
            candidate = replace(contestant, learning_rate=float(f"{rate * factor:.3g}"))
            # Raises for a rate that cannot be set.
            candidate.make(candidate.learning_rate)
            entries.append(candidate)
    return entries


def lanes_by_rate(race: Race) -> list[list[Lane]]:
    """Group the lanes of a sweep by contestant; lanes keep their order of rising rates."""
    size = len(FACTORS)
    return [race.lanes[first : first + size] for first in range(0, len(race.lanes), size)]


def best_lane(lanes: Sequence[Lane]) -> Lane:
    """Return the lane with the lowest train loss; losses that are not finite come last."""

    def key(lane: Lane) -> float:
        return lane.scores.train_loss if math.isfinite(lane.scores.train_loss) else math.inf

    return min(lanes, key=key)


def is_at_the_edge(lanes: Sequence[Lane]) -> bool:
    """Return True if the best rate is the lowest or highest that was tried."""
    return best_lane(lanes) in (lanes[0], lanes[-1])

"""The search for a learning rate: every contestant races with as many, around its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from thalweg._cli.race.contestant import Contestant
from thalweg._cli.race.errors import RaceError
from thalweg._cli.race.run import Lane, Race, rate_of

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)


def enter_rates(contestants: Sequence[Contestant]) -> list[Contestant]:
    """Return each contestant once for each factor of its learning rate.

    Raises:
        RaceError: A learning rate is not a number, or cannot be set.
    """
    entered: list[Contestant] = []
    for each in contestants:
        rate = rate_of(each, each.make(each.learning_rate))
        if rate is None:
            raise RaceError(f"the learning rate of {each.name} is no number, so none is near it.")
        for factor in FACTORS:
            tried = replace(each, learning_rate=float(f"{rate * factor:.3g}"))
            tried.make(tried.learning_rate)  # one that cannot be set fails here
            entered.append(tried)
    return entered


def lanes_by_rate(race: Race) -> list[list[Lane]]:
    """Split the lanes of a race between the contestants of `enter_rates`: one list for each.

    Nothing is sorted: lanes keep their order, which is by rising learning rate.
    """
    size = len(FACTORS)
    return [race.lanes[first : first + size] for first in range(0, len(race.lanes), size)]


def best_lane(lanes: Sequence[Lane]) -> Lane:
    """Return the lane with the lowest train loss; the test examples have no say."""

    def key(lane: Lane) -> tuple[bool, float]:
        loss = lane.scores.train_loss
        return not math.isfinite(loss), loss if math.isfinite(loss) else 0.0

    return min(lanes, key=key)


def is_at_the_edge(lanes: Sequence[Lane]) -> bool:
    """Return True if the best rate is the lowest or highest, so that one beyond may be better."""
    return best_lane(lanes) in (lanes[0], lanes[-1])

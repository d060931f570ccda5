"""Ranking of contestants over one seed or several, with ranks that the seeds leave open."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from thalweg._cli.race.run import Lane, Race

# Student's t: the quantile of 97.5 % by degrees of freedom, from 1 on.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_FEWEST_T = 1.96


@dataclass
class Standing:
    """A contestant's place.

    Attributes:
        lanes: Its lanes, one for each seed.
        first: The best rank that the seeds leave open, from 1.
        last: The worst one; with one seed the same.
    """

    lanes: list[Lane]
    first: int = 0
    last: int = 0

    @property
    def name(self) -> str:
        """The contestant's name."""
        return self.lanes[0].name

    @property
    def diverged(self) -> int:
        """Number of lanes in which the loss stopped being a number."""
        return sum(lane.diverged_at is not None for lane in self.lanes)

    @property
    def is_scored(self) -> bool:
        """True if there are scores for all seeds."""
        return not self.diverged and all(lane.evaluations for lane in self.lanes)

    @property
    def accuracies(self) -> list[float]:
        """The accuracy on the test examples for each seed; 0 where the loss is no number."""
        return [0.0 if lane.diverged_at is not None else lane.scores.test_accuracy
                for lane in self.lanes]  # fmt: skip

    @property
    def accuracy(self) -> float:
        """Their mean."""
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float:
        """Their standard deviation; NaN of one seed."""
        return statistics.stdev(self.accuracies) if len(self.lanes) > 1 else math.nan

    @property
    def train_loss(self) -> float:
        """The mean loss on the training examples, of the seeds where it is a number."""
        return _mean_of([lane.scores.train_loss for lane in self.lanes])

    @property
    def seconds(self) -> float:
        """Mean time of all steps but the first, in seconds."""
        return _mean_of([lane.seconds for lane in self.lanes])

    @property
    def step_time(self) -> float:
        """The optimizer's part of a step, the median over seeds."""
        return statistics.median(lane.step_time for lane in self.lanes)


def rank_contestants(races: Sequence[Race]) -> list[Standing]:
    """The best first, each with the ranks that are left open.

    The same seed gives all contestants the same weights and batches, so pairs are compared: one is
    better than another where the mean difference of their accuracies is beyond the 95 % interval of
    Student's t.
    """
    names = [lane.name for lane in races[0].lanes]
    found = [Standing([race.lanes[place] for race in races]) for place in range(len(names))]
    if len(races) == 1:
        order = [id(lane) for lane in races[0].ranked()]
        found.sort(key=lambda each: order.index(id(each.lanes[0])))
    else:
        found.sort(key=lambda each: (-each.accuracy, each.train_loss))
    ranks = open_ranks([each.accuracies for each in found])
    for each, (first, last) in zip(found, ranks, strict=True):
        each.first, each.last = first, last
    return found


def open_ranks(values: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Return the best and the worst rank that pairs of values leave open, from 1.

    Args:
        values: Those of each contestant, one for each seed, more being better; the contestants by
            rank, which is all that one seed has.
    """
    if len(values[0]) == 1:
        return [(rank, rank) for rank in range(1, len(values) + 1)]
    return [
        (
            1 + sum(_is_better(other, each) for other in values),
            len(values) - sum(_is_better(each, other) for other in values),
        )
        for each in values
    ]


def _is_better(one: Sequence[float], other: Sequence[float]) -> bool:
    differences = [a - b for a, b in zip(one, other, strict=True)]
    count = len(differences)
    t = _T[count - 2] if count - 2 < len(_T) else _FEWEST_T
    return statistics.fmean(differences) > t * statistics.stdev(differences) / math.sqrt(count)


def _mean_of(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else math.nan

"""Ranking of contestants over one seed or several, with ranges of possible ranks."""

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
    """Ranking of a contestant.

    Attributes:
        lanes: The contestant's lanes, one per seed.
        first: The best possible rank, counted from 1.
        last: The worst possible rank; `first` if there is one seed.
    """

    lanes: list[Lane]
    first: int = 0
    last: int = 0

    @property
    def name(self) -> str:
        """Return the contestant's name."""
        return self.lanes[0].name

    @property
    def diverged(self) -> int:
        """Return the number of lanes that diverged."""
        return sum(lane.diverged_at is not None for lane in self.lanes)

    @property
    def is_scored(self) -> bool:
        """Return True if there are scores for all seeds."""
        return not self.diverged and all(lane.evaluations for lane in self.lanes)

    @property
    def accuracies(self) -> list[float]:
        """Return the accuracy on the test examples per seed; 0 for a diverged lane."""
        return [0.0 if lane.diverged_at is not None else lane.scores.test_accuracy
                for lane in self.lanes]  # fmt: skip

    @property
    def accuracy(self) -> float:
        """Return the mean of `accuracies`."""
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float:
        """Return the standard deviation of `accuracies`; NaN with one seed."""
        return statistics.stdev(self.accuracies) if len(self.lanes) > 1 else math.nan

    @property
    def train_loss(self) -> float:
        """Return the mean loss on the training examples over the seeds that did not diverge."""
        return _mean_of([lane.scores.train_loss for lane in self.lanes])

    @property
    def seconds(self) -> float:
        """Return the mean time of all steps but the first, in seconds."""
        return _mean_of([lane.seconds for lane in self.lanes])

    @property
    def step_time(self) -> float:
        """Return the median over seeds of the optimizer's time per step."""
        return statistics.median(lane.step_time for lane in self.lanes)


def format_ranks(first: int, last: int) -> str:
    """Format the best and the worst possible rank as `2` or `1-3`."""
    return str(first) if first == last else f"{first}-{last}"


def rank_contestants(races: Sequence[Race]) -> list[Standing]:
    """Return the standings, the best first, with the best and worst possible ranks.

    A contestant is better than another if a paired t-test over the seeds is significant at 95 %.
    """
    names = [lane.name for lane in races[0].lanes]
    standings = [Standing([race.lanes[index] for race in races]) for index in range(len(names))]
    if len(races) == 1:
        order = [id(lane) for lane in races[0].ranked()]
        standings.sort(key=lambda ranked: order.index(id(ranked.lanes[0])))
    else:
        standings.sort(key=lambda ranked: (-ranked.accuracy, ranked.train_loss))
    ranks = open_ranks([ranked.accuracies for ranked in standings])
    for ranked, (first, last) in zip(standings, ranks, strict=True):
        ranked.first, ranked.last = first, last
    return standings


def open_ranks(values: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Return (best possible rank, worst possible rank) of each contestant, counted from 1.

    Args:
        values: A list of scores (one per seed) for each contestant, the best contestant first.
    """
    if len(values[0]) == 1:
        return [(rank, rank) for rank in range(1, len(values) + 1)]
    return [
        (
            1 + sum(_is_better(rival, scores) for rival in values),
            len(values) - sum(_is_better(scores, rival) for rival in values),
        )
        for scores in values
    ]


def _is_better(scores: Sequence[float], rival_scores: Sequence[float]) -> bool:
    differences = [a - b for a, b in zip(scores, rival_scores, strict=True)]
    count = len(differences)
    t = _T[count - 2] if count - 2 < len(_T) else _FEWEST_T
    return statistics.fmean(differences) > t * statistics.stdev(differences) / math.sqrt(count)


def _mean_of(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else math.nan

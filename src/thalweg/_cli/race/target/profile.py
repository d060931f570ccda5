"""Performance profiles: on which share of the problems a contestant is within tau of the best.

Source: Dolan and More 2002, https://arxiv.org/abs/cs/0102001; the score is that of AlgoPerf, Dahl
et al. 2023, https://arxiv.org/abs/2306.07179: the mean of the profile over tau from 1 to 4.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from thalweg._cli.race.standings import open_ranks
from thalweg._cli.race.target.results import Key, Results

LONGEST = 4.0
Costs = Mapping[str, Mapping[str, float]]  # by problem, then by contestant; infinite for a miss


@dataclass(frozen=True)
class RankedRun:
    """A contestant's place by one measure.

    Attributes:
        name: Its name.
        score: The mean of its profile.
        costs: The median over studies, by problem.
        first: The best rank that the studies leave open, from 1.
        last: The worst one; with one study the same.
    """

    name: str
    score: float
    costs: Mapping[str, float]
    first: int
    last: int


def steps_of(results: Results, key: Key) -> float:
    """Return the steps of a trial that reached the target."""
    return float(results.ran[key].steps or math.inf)


def seconds_of(results: Results, key: Key) -> float:
    """Return the seconds of one that was timed."""
    timed = results.timed[key]
    return timed.seconds if results.by_clock else timed.cpu


def place_all(results: Results, measure_run: Callable[[Results, Key], float]) -> list[RankedRun]:
    """Rank all contestants by one measure, the best first.

    Of each problem the median over studies counts. Open ranks are found from the scores of single
    studies, in pairs: all contestants have the same weights and batches there.
    """
    plan = results.plan
    studies = [_costs_of(results, study, measure_run) for study in range(plan.studies)]
    medians = {
        problem: {
            name: statistics.median(costs[problem][name] for costs in studies)
            for name in plan.spaces
        }
        for problem in plan.problems
    }
    scores = scores_of(medians)
    names = sorted(scores, key=lambda name: (-scores[name], _tie_of(medians, name)))
    of_studies = [scores_of(costs) for costs in studies]
    ranks = open_ranks([[each[name] for each in of_studies] for name in names])
    return [
        RankedRun(
            name, scores[name], {each: medians[each][name] for each in medians},
            min(first, rank), max(last, rank),
        )
        for rank, (name, (first, last)) in enumerate(zip(names, ranks, strict=True), start=1)
    ]  # fmt: skip


def _tie_of(costs: Costs, name: str) -> list[float]:
    return sorted(each[name] for each in costs.values())


def _costs_of(results: Results, study: int, measure_run: Callable[[Results, Key], float]) -> Costs:
    """Of the fastest trials of a study."""
    plan = results.plan
    return {
        problem: {
            name: measure_run(results, key)
            if (key := results.fastest(problem, name, study)) is not None
            else math.inf
            for name in plan.spaces
        }
        for problem in plan.problems
    }


def ratios_of(costs: Costs) -> dict[str, list[float]]:
    """Return, for each problem, the cost of each contestant divided by that of the best."""
    found: dict[str, list[float]] = {name: [] for name in next(iter(costs.values()))}
    for each in costs.values():
        best = min(each.values())
        for name, cost in each.items():
            found[name].append(cost / best if math.isfinite(cost) else math.inf)
    return found


def scores_of(costs: Costs) -> dict[str, float]:
    """Return the mean of each profile over tau from 1 to `LONGEST`."""
    return {name: score_of(ratios) for name, ratios in ratios_of(costs).items()}


def score_of(ratios: Sequence[float]) -> float:
    """Return the mean of a profile over tau from 1 to `LONGEST`: a number from 0 to 1.

    `ratios` has one ratio for each problem, infinite for a miss. A problem counts for every tau
    from its ratio on.
    """
    shares = [max(0.0, LONGEST - ratio) / (LONGEST - 1) for ratio in ratios]
    return statistics.fmean(shares)


def curve_of(ratios: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the corners of a profile, from tau 1 to `LONGEST`: tau, and the share from there
    on.
    """
    taus = [1.0, *sorted(ratio for ratio in ratios if 1 < ratio <= LONGEST), LONGEST]
    shares = [sum(ratio <= tau for ratio in ratios) / len(ratios) for tau in taus]
    return taus, shares

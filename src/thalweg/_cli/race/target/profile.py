"""Performance profiles: the share of problems that a contestant solves at tau times the least cost.

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
# Costs by problem, then by contestant; infinite for a miss.
Costs = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class RankedRun:
    """Ranking of a contestant by steps or time.

    Attributes:
        name: The contestant's name.
        score: The mean of the contestant's profile.
        costs: {problem: median cost over studies}.
        first: The best possible rank, counted from 1.
        last: The worst possible rank; `first` if there is one study.
    """

    name: str
    score: float
    costs: Mapping[str, float]
    first: int
    last: int


def steps_of(results: Results, key: Key) -> float:
    """Return the steps in which a trial reached the target; infinity if it did not."""
    return float(results.outcomes[key].steps or math.inf)


def seconds_of(results: Results, key: Key) -> float:
    """Return the seconds of a timed trial, by the clock or the processor."""
    timing = results.timings[key]
    return timing.seconds if results.by_clock else timing.cpu


def place_all(results: Results, measure_run: Callable[[Results, Key], float]) -> list[RankedRun]:
    """Return all contestants ranked by a cost, the best first.

    `measure_run(results, key)` returns the cost of a trial. Contestants are ranked by the score of
    their median costs over the studies. The scores of single studies give the possible ranks.
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
    # Ties of scores are broken by costs.
    costs_of = {name: sorted(costs[name] for costs in medians.values()) for name in scores}
    names = sorted(scores, key=lambda name: (-scores[name], costs_of[name]))
    of_studies = [scores_of(costs) for costs in studies]
    ranks = open_ranks([[study_scores[name] for study_scores in of_studies] for name in names])
    return [
        RankedRun(
            name, scores[name], {problem: medians[problem][name] for problem in medians},
            min(lowest, rank), max(highest, rank),
        )
        for rank, (name, (lowest, highest)) in enumerate(zip(names, ranks, strict=True), start=1)
    ]  # fmt: skip


def _costs_of(results: Results, study: int, measure_run: Callable[[Results, Key], float]) -> Costs:
    """Return {problem: {contestant: cost of the fastest trial}} of a study; infinity for a miss."""
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
    """Return {contestant: ratios}, one per problem: the cost divided by the least cost."""
    ratios: dict[str, list[float]] = {name: [] for name in next(iter(costs.values()))}
    for costs_by_name in costs.values():
        lowest = min(costs_by_name.values())
        for name, cost in costs_by_name.items():
            ratios[name].append(cost / lowest if math.isfinite(cost) else math.inf)
    return ratios


def scores_of(costs: Costs) -> dict[str, float]:
    """Return the mean of each profile over tau from 1 to `LONGEST`."""
    return {name: score_of(ratios) for name, ratios in ratios_of(costs).items()}


def score_of(ratios: Sequence[float]) -> float:
    """Return the mean of a profile over tau from 1 to `LONGEST`: a number from 0 to 1.

    `ratios` has one ratio for each problem, infinite for a miss. A problem counts for every tau
    from its ratio on.
    """
    fractions = [max(0.0, LONGEST - ratio) / (LONGEST - 1) for ratio in ratios]
    return statistics.fmean(fractions)


def curve_of(ratios: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the corners of a profile, from tau 1 to `LONGEST`: values of tau, and shares."""
    taus = [1.0, *sorted(ratio for ratio in ratios if 1 < ratio <= LONGEST), LONGEST]
    fractions = [sum(ratio <= tau for ratio in ratios) / len(ratios) for tau in taus]
    return taus, fractions

"""Summary of a race to a target: two rankings, and the cost of the tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thalweg._cli.race.target.profile import RankedRun, place_all, seconds_of, steps_of
from thalweg._cli.race.target.results import Results


@dataclass(frozen=True)
class Tuning:
    """Cost of a contestant's search.

    Attributes:
        steps: Steps of all trials on all problems in a study; the mean over studies.
        hits: The number of (problem, study) pairs in which a trial reached the target.
        studies: The number of (problem, study) pairs.
    """

    steps: float
    hits: int
    studies: int


@dataclass(frozen=True)
class Summary:
    """Rankings of a race to a target.

    Attributes:
        steps: The contestants by steps to the target.
        seconds: The contestants by time.
        tuning: {contestant: cost of the search}.
        by_clock: True if `seconds` ranks by clock time, False if by processor time.
    """

    steps: list[RankedRun]
    seconds: list[RankedRun]
    tuning: dict[str, Tuning]
    by_clock: bool


def summarize(results: Results) -> Summary:
    """Return the summary of complete results."""
    return Summary(
        place_all(results, steps_of),
        place_all(results, seconds_of),
        {name: _tuning_of(results, name) for name in results.plan.spaces},
        results.by_clock,
    )


def _tuning_of(results: Results, name: str) -> Tuning:
    plan = results.plan
    step_count = sum(
        outcome.taken for key, outcome in results.outcomes.items() if key.contestant == name
    )
    hits = [
        results.fastest(problem, name, study) is not None
        for problem in plan.problems
        for study in range(plan.studies)
    ]
    return Tuning(step_count / plan.studies, sum(hits), len(hits))


def as_json(summary: Summary) -> dict[str, Any]:
    """Return a summary as JSON values: a miss is null."""
    return {
        "steps": [_row_of(run) for run in summary.steps],
        "seconds": [_row_of(run) for run in summary.seconds],
        "tuning": {name: vars(tuning) for name, tuning in summary.tuning.items()},
        "by_clock": summary.by_clock,
    }


def _row_of(run: RankedRun) -> dict[str, Any]:
    costs = {name: cost if math.isfinite(cost) else None for name, cost in run.costs.items()}
    return {**vars(run), "costs": costs}


def write_notes(results: Results, summary: Summary) -> list[str]:
    """Return notes on the ranking method, and on the limits of a ranking."""
    plan = results.plan
    of_studies = "One study" if plan.studies == 1 else f"Median of {plan.studies} studies"
    of_trials = "the only trial" if plan.trials == 1 else f"the fastest of {plan.trials} trials"
    notes = [
        f"{of_studies}, of which {of_trials} counts. -"
        " is a miss: infinite. score: the share of the problems within tau of the best, a mean over"
        " tau from 1 to 4. hits: studies that reached the target; tuning: steps of all trials"
        " of a study. Seconds are of forward, backward and step, in a second pass with one run at a"
        " time, without the first step.",
        _tell_open(plan.studies, summary.steps, "steps"),
        _tell_open(plan.studies, summary.seconds, "time"),
    ]
    if not summary.by_clock:
        notes.append(
            f"Other processes took cores away: a timed run had {results.quiet:.0%} of one. So times"
            " are the processor's, not the clock's."
        )
    return notes


def _tell_open(studies: int, ranking: Sequence[RankedRun], unit: str) -> str:
    best, *other_runs = ranking
    if studies == 1:
        return f"By {unit} {best.name} is ahead; with one study that may be chance."
    close_names = [run.name for run in other_runs if run.first == 1]
    if close_names:
        return f"By {unit} the studies cannot tell {', '.join(close_names)} from {best.name}."
    if best.last > 1:
        return f"By {unit} {best.name} is ahead, though not in a paired t-test of the studies."
    return f"By {unit} {best.name} is ahead of all others, in a paired t-test of the studies."

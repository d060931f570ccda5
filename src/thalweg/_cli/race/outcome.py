"""Races over several seeds. The first race may try several learning rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from thalweg._cli.race import sweep
from thalweg._cli.race.contestant import Contestant
from thalweg._cli.race.problems import Problem
from thalweg._cli.race.run import Race, run
from thalweg.distribute import Strategy


@dataclass
class RaceOutcome:
    """Outcome of the races of all seeds.

    Attributes:
        races: One race per finished seed.
        seeds: The number of seeds planned.
        swept: The race with several learning rates, or None. `races[0]` then has the best rates.
        stopped: Whether Ctrl-C ended the races early.
    """

    races: list[Race]
    seeds: int = 1
    swept: Race | None = None
    stopped: bool = False

    @property
    def race(self) -> Race:
        """Return the race of the first seed."""
        return self.races[0]

    @property
    def seconds(self) -> float:
        """Return the total time of all races, in seconds."""
        return sum(race.seconds for race in self.races)


@dataclass(frozen=True)
class Fraction:
    """Share of one race in the progress of all races.

    Attributes:
        label: The race's seed in words; empty for a single race.
        offset: The fraction of the total that precedes this race.
        length: The fraction of the total that this race covers.
        searching: Whether contestants try learning rates.
    """

    label: str = ""
    offset: float = 0.0
    length: float = 1.0
    searching: bool = False

    def done(self, race: Race) -> float:
        """Return the completed fraction of the total, from the present step of `race`."""
        return self.offset + self.length * race.step / race.steps


Progress = Callable[[Fraction, Race], None]


def race_seeds(
    load: Callable[[int], Problem], contestants: Sequence[Contestant], *, seeds: Sequence[int],
    sweeps: bool = False, epochs: int | None = None, threads: int = 1,
    progress: Progress | None = None, strategy: Strategy | None = None, measures: bool = False,
) -> RaceOutcome:  # fmt: skip
    """Run a race per seed.

    Args:
        load: `load(seed)` returns the problem.
        sweeps: True to try several learning rates in the first race. Later races have the best.
        epochs, threads, strategy: As for `run`.
        measures: True to record diagnostics of the first race.
        progress: `progress(fraction, race)` is called after each block of steps of a contestant.
            `fraction` is the share of this race in the progress of all races.

    Returns:
        The finished races. After Ctrl-C in the first race, the outcome has its steps so far; after
        Ctrl-C in a later race, it lacks this race.

    Raises:
        EntryError: An optimizer fails; the message names the optimizer.
        KeyboardInterrupt: Ctrl-C before the first result.
    """
    first = len(sweep.FACTORS) if sweeps else 1
    total_races = first + len(seeds) - 1
    outcome = RaceOutcome([], len(seeds))
    for index, seed in enumerate(seeds):
        searching = sweeps and index == 0
        offset = (first + index - 1) / total_races if index else 0.0
        label = f"seed {seed} ({index + 1} of {len(seeds)})" if len(seeds) > 1 else ""
        fraction = Fraction(
            label, offset, 1 / total_races if index else first / total_races, searching
        )
        try:
            race = run(
                load(seed), sweep.enter_rates(contestants) if searching else contestants,
                epochs=epochs, seed=seed, threads=threads, strategy=strategy,
                measures=measures and index == 0,
                progress=None if progress is None else partial(progress, fraction),
            )  # fmt: skip
        except KeyboardInterrupt:
            if not outcome.races:
                raise
            outcome.stopped = True
            break
        if searching:
            best_lanes = [sweep.best_lane(lanes) for lanes in sweep.lanes_by_rate(race)]
            contestants = [lane.contestant for lane in best_lanes]
            outcome.swept, race = race, replace(race, lanes=best_lanes)
        outcome.stopped = race.stopped
        if not race.stopped or not outcome.races:
            outcome.races.append(race)
        if race.stopped:
            break
    return outcome

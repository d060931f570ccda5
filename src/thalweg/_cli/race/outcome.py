"""Outcome of a race for each seed, the first perhaps with several learning rates."""

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
    """Races of all seeds.

    Attributes:
        races: One for each seed.
        seeds: The number of seeds planned.
        swept: The sweep, if there was one; its best lanes are the race of the first seed.
        stopped: Whether Ctrl-C ended it early.
    """

    races: list[Race]
    seeds: int = 1
    swept: Race | None = None
    stopped: bool = False

    @property
    def race(self) -> Race:
        """The first."""
        return self.races[0]

    @property
    def seconds(self) -> float:
        """Total time of all races, in seconds."""
        return sum(race.seconds for race in self.races)


@dataclass(frozen=True)
class Fraction:
    """A part of the whole.

    Attributes:
        title: What it is; empty if it is all.
        begins: The share of the whole that comes before it.
        share: Its own.
        searching: Whether contestants try learning rates.
    """

    title: str = ""
    begins: float = 0.0
    share: float = 1.0
    searching: bool = False

    def done(self, race: Race) -> float:
        """Return the share of the whole that is done when this part is as far as `race`."""
        return self.begins + self.share * race.step / race.steps


Progress = Callable[[Race, Fraction], None]


def race_seeds(
    load: Callable[[int], Problem], contestants: Sequence[Contestant], *, seeds: Sequence[int],
    sweeps: bool = False, epochs: int | None = None, threads: int = 1,
    progress: Progress | None = None, strategy: Strategy | None = None, measures: bool = False,
) -> RaceOutcome:  # fmt: skip
    """Race over one seed or several.

    Args:
        load: Makes the problem for a seed.
        contestants: Who races.
        seeds: Which.
        sweeps: Whether contestants try learning rates in the first, and go on with the best.
        epochs, threads, strategy: See `run`.
        measures: Whether steps of the first are measured; see `run`.
        progress: Called from time to time with the race under way.

    Returns:
        All of it; after Ctrl-C the races that were over, or as much as there is of the first.

    Raises:
        EntryError: If an optimizer fails; names it.
        KeyboardInterrupt: Ctrl-C, with nothing to keep.
    """
    first = len(sweep.FACTORS) if sweeps else 1
    whole = first + len(seeds) - 1
    outcome = RaceOutcome([], len(seeds))
    for number, seed in enumerate(seeds):
        searching = sweeps and number == 0
        begins = (first + number - 1) / whole if number else 0.0
        title = f"seed {seed} ({number + 1} of {len(seeds)})" if len(seeds) > 1 else ""
        part = Fraction(title, begins, 1 / whole if number else first / whole, searching)
        try:
            race = run(
                load(seed), sweep.enter_rates(contestants) if searching else contestants,
                epochs=epochs, seed=seed, threads=threads, strategy=strategy,
                measures=measures and number == 0,
                progress=None if progress is None else partial(_tell_part, progress, part),
            )  # fmt: skip
        except KeyboardInterrupt:
            if not outcome.races:
                raise
            outcome.stopped = True
            break
        if searching:
            chosen = [sweep.best_lane(lanes) for lanes in sweep.lanes_by_rate(race)]
            contestants = [lane.contestant for lane in chosen]
            outcome.swept, race = race, replace(race, lanes=chosen)
        outcome.stopped = race.stopped
        if not race.stopped or not outcome.races:
            outcome.races.append(race)
        if race.stopped:
            break
    return outcome


def _tell_part(progress: Progress, part: Fraction, race: Race) -> None:
    progress(race, part)

"""Interleaved timing: A, B, C, then C, B, A; ratios within a round, medians over the rounds.

Noise of a shared machine comes in spells. A round is short, so that a spell affects all contenders
(steps to compare) of the round. Rounds that other processes disturbed are repeated. With too few
quiet rounds the verdict is not "quiet": a busy core slows two threads far more than one thread.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from time import perf_counter
from typing import Literal

Step = Callable[[], object]
Verdict = Literal["quiet", "busy", "unsteady"]

# Untimed steps at the start: compilation, first touch of slots, plans.
WARM_UP = 3
# Rounds that run regardless of the budget.
FEWEST = 3
# A round is disturbed if a block takes this much longer than the contender's fast blocks.
QUIET = 1.25
# Seconds after which no further round begins.
BUDGET = 60.0
# A round is disturbed if other processes use more cores than this.
MAX_CORES_OF_OTHERS = 0.1
# Ratios are unsteady if their middle half is wider than this share of their median.
SPREAD = 0.25


@dataclass(frozen=True)
class Contender:
    """Named step that is timed.

    Attributes:
        name: The name in tables.
        step: The timed call.
        prepare: Called without arguments before each step, untimed, like the rest of a training.
    """

    name: str
    step: Step
    prepare: Step | None = None


@dataclass
class Timings:
    """Times of all rounds.

    Attributes:
        seconds: {name of the contender: median seconds of a step in each round}.
        cores_of_others: For each round, the cores that other processes used; 0 if unknown.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    cores_of_others: list[float] = field(default_factory=list[float])

    def quiet(self) -> list[int]:
        """Return the indices of rounds in which no other process ran and no contender was slow."""
        # The limit is relative to the 20th percentile.
        limits = {name: QUIET * sorted(times)[len(times) // 5]
                  for name, times in self.seconds.items() if times}  # fmt: skip
        return [
            index
            for index, cores_of_others in enumerate(self.cores_of_others)
            if cores_of_others <= MAX_CORES_OF_OTHERS
            and all(self.seconds[name][index] <= limit for name, limit in limits.items())
        ]

    def counted(self) -> list[int]:
        """Return the indices of the rounds that count: the quiet rounds, or all if too few."""
        quiet = self.quiet()
        return quiet if len(quiet) >= FEWEST else list(range(len(self.cores_of_others)))

    @property
    def verdict(self) -> Verdict:
        """Return "quiet", "busy" or "unsteady".

        "quiet": the times can be trusted. "busy": other processes used the cores. "unsteady": times
        jump although no other process ran, as on a shared or throttled machine.
        """
        quiet = len(self.quiet())
        if quiet >= FEWEST or quiet == len(self.cores_of_others):
            return "quiet"
        return "busy" if self.disturbance > MAX_CORES_OF_OTHERS else "unsteady"

    @property
    def disturbance(self) -> float:
        """Return the median of the cores that other processes used in the rounds that count."""
        return median(self.cores_of_others[index] for index in self.counted())

    def spread(self, name: str, anchor: str) -> float:
        """Return the interquartile range of time ratios, `name` to `anchor`, divided by the median.

        A large spread may be due to processes that use the memory bandwidth but not the cores.
        """
        ratios = self._ratios(name, anchor)
        if len(ratios) < 2:
            return 0.0
        low, middle, high = quantiles(ratios, n=4, method="inclusive")
        return (high - low) / middle

    def median(self, name: str) -> float:
        """Return the median seconds of a step in the rounds that count."""
        return median(self.seconds[name][index] for index in self.counted())

    def ratio(self, name: str, anchor: str) -> float:
        """Return the median over the rounds of a contender's step time divided by the anchor's."""
        return median(self._ratios(name, anchor))

    def _ratios(self, name: str, anchor: str) -> list[float]:
        times, anchor_times = self.seconds[name], self.seconds[anchor]
        return [times[index] / anchor_times[index] for index in self.counted()]


def busy_elsewhere() -> float:
    """Return the CPU seconds of all other processes since boot; 0 without /proc/stat."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _, _, *other_ticks = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    used = (user + nice + system + sum(other_ticks)) / os.sysconf("SC_CLK_TCK")
    # The times of this process and its children are not those of others.
    return used - sum(os.times()[:4])


@contextmanager
def no_collection() -> Generator[None]:
    """Collect garbage once, then disable the garbage collector in a `with` block."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def time_steps(contender: Contender, steps: int) -> list[float]:
    """Call the contender's step `steps` times; return the seconds of each call."""
    step, prepare = contender.step, contender.prepare
    seconds: list[float] = []
    for _ in range(steps):
        if prepare is not None:
            prepare()
        start = perf_counter()
        step()
        seconds.append(perf_counter() - start)
    return seconds


def _steps_of_block(contender: Contender, block: float) -> int:
    """Return the number of steps that last about `block` seconds, from 2 to 2,000."""
    time_steps(contender, WARM_UP - 1)
    start = perf_counter()
    time_steps(contender, 1)
    return max(2, min(2000, round(block / (perf_counter() - start))))


def measure(
    contenders: Sequence[Contender],
    *,
    rounds: int = 7,
    block: float = 0.1,
    budget: float = BUDGET,
    progress: Callable[[int, int, Timings], object] | None = None,
    doing: Callable[[str], object] = lambda now: None,
) -> Timings:
    """Time the contenders in interleaved rounds.

    In a round, each contender takes a block of steps. The median time of the steps counts, without
    the first step of the block. Disturbed rounds are repeated, up to `3 * rounds` rounds in all.

    Args:
        contenders: The steps to compare.
        rounds: The number of undisturbed rounds to reach.
        block: Seconds that a block should last.
        budget: Seconds after which no further round begins. Three rounds always run.
        progress: `progress(quiet, rounds, timings)` is called before each round. `quiet` is the
            number of undisturbed rounds so far.
        doing: `doing(text)` is called before each block with a description of the block.
    """
    timings = Timings({contender.name: [] for contender in contenders})
    steps: dict[str, int] = {}
    for contender in contenders:
        doing(f"warming up {contender.name}")
        steps[contender.name] = _steps_of_block(contender, block)
    order = list(contenders)
    start = perf_counter()
    for round_index in range(3 * rounds):
        quiet = len(timings.quiet())
        if progress is not None:
            progress(min(quiet, rounds), rounds, timings)
        if quiet >= rounds or (round_index >= FEWEST and perf_counter() - start > budget):
            break
        # A collection would add its time to the block of whichever contender triggers it.
        with no_collection():
            began, busy = perf_counter(), busy_elsewhere()
            for contender in order:
                doing(f"round {round_index + 1}, {contender.name}")
                times = time_steps(contender, steps[contender.name] + 1)[1:]
                timings.seconds[contender.name].append(median(times))
            timings.cores_of_others.append(
                max(busy_elsewhere() - busy, 0) / (perf_counter() - began)
            )
        order.reverse()
    return timings

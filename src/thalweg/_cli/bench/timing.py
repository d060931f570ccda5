"""Interleaved timing: A, B, C, then C, B, A; ratios within a round, medians over the rounds.

Noise of a shared machine comes in spells. What is compared runs within the same spell, and rounds
in which something else ran are repeated. Where no quiet rounds are found the result says so: two
threads that wait for each other suffer far more from a busy core than one does.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from time import perf_counter
from typing import Literal

Step = Callable[[], object]
Verdict = Literal["quiet", "busy", "unsteady"]

WARM_UP = 3  # steps before anything is timed: compilation, first touch of slots, plans
FEWEST = 3  # rounds that are run whatever the budget
QUIET = 1.25  # a round with a block this much slower than the contender's better ones is noise
BUDGET = 60.0  # seconds after which no further round begins
OTHERS = 0.1  # and so is one in which other processes used this many cores
SPREAD = 0.25  # ratios whose middle half is wider than this share of their median say little


@dataclass(frozen=True)
class Contender:
    """Named step that is timed.

    Attributes:
        name: The name in tables.
        step: The timed call.
        before: Called before each step, not timed: the rest of a training loop.
    """

    name: str
    step: Step
    before: Step | None = None


@dataclass
class Timings:
    """Times of all rounds.

    Attributes:
        seconds: For each contender the seconds of a step, one median for each round.
        others: For each round, the number of cores that other processes used; 0 if it is not known.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)

    def quiet(self) -> list[int]:
        """Return the rounds in which nothing was disturbed."""
        limits = {
            name: QUIET * _low_percentile(times) for name, times in self.seconds.items() if times
        }
        return [
            index
            for index, others in enumerate(self.others)
            if others <= OTHERS
            and all(self.seconds[name][index] <= limit for name, limit in limits.items())
        ]

    def counted(self) -> list[int]:
        """Return the rounds that count: the quiet ones, or all if those are too few."""
        quiet = self.quiet()
        return quiet if len(quiet) >= FEWEST else list(range(len(self.others)))

    @property
    def verdict(self) -> Verdict:
        """Verdict on the rounds that count.

        "quiet": they can be trusted. "busy": other processes used the cores. "unsteady": times jump
        though none did; a shared or throttled machine does that.
        """
        quiet = len(self.quiet())
        if quiet >= FEWEST or quiet == len(self.others):
            return "quiet"
        return "busy" if self.disturbance > OTHERS else "unsteady"

    @property
    def disturbance(self) -> float:
        """Median number of cores that other processes used in the rounds that count."""
        return median(self.others[index] for index in self.counted())

    def spread(self, name: str, anchor: str) -> float:
        """Return the width of the middle half of the ratios that count, as a share of their median.

        Processes that share the memory with a step but not its cores show here, and nowhere else.
        """
        ratios = self._ratios(name, anchor)
        if len(ratios) < 2:
            return 0.0
        low, middle, high = quantiles(ratios, n=4, method="inclusive")
        return (high - low) / middle

    def median(self, name: str) -> float:
        """Seconds of a step."""
        return median(self.seconds[name][index] for index in self.counted())

    def ratio(self, name: str, anchor: str) -> float:
        """Return the median time of a step of `name` in units of the anchor's, in the same
        rounds.
        """
        return median(self._ratios(name, anchor))

    def _ratios(self, name: str, anchor: str) -> list[float]:
        one, other = self.seconds[name], self.seconds[anchor]
        return [one[index] / other[index] for index in self.counted()]


def busy_elsewhere() -> float:
    """Seconds of processor time that all other processes have used; 0 where Linux does not tell."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _, _, *rest = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    used = (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
    return used - sum(os.times()[:4])  # this process and its children


def _low_percentile(times: Sequence[float]) -> float:
    """The 20th percentile."""
    return sorted(times)[len(times) // 5]


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector from running inside the block."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def time_steps(contender: Contender, steps: int) -> list[float]:
    """Seconds of each of `steps` steps."""
    step, before = contender.step, contender.before
    result = []
    for _ in range(steps):
        if before is not None:
            before()
        start = perf_counter()
        step()
        result.append(perf_counter() - start)
    return result


def _steps_of_block(contender: Contender, block: float) -> int:
    """How many steps make a block."""
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

    A round gives each contender one block of steps. The first step of a block is not counted: it
    finds the caches full of another's data. The block counts with the median of its other steps.
    Disturbed rounds are repeated, up to twice as many again.

    Args:
        contenders: What to compare.
        rounds: How many quiet rounds are wanted.
        block: Seconds that a block should last.
        budget: Seconds after which no further round begins, once there are three.
        progress: Called after each round with the number of quiet rounds, the number wanted, and
            all that was measured.
        doing: Called with what comes next, before each block.
    """
    timings = Timings({contender.name: [] for contender in contenders})
    steps = {}
    for contender in contenders:
        doing(f"warming up {contender.name}")
        steps[contender.name] = _steps_of_block(contender, block)
    order = list(contenders)
    start = perf_counter()
    for done in range(3 * rounds):
        quiet = len(timings.quiet())
        if progress is not None:
            progress(min(quiet, rounds), rounds, timings)
        if quiet >= rounds or (done >= FEWEST and perf_counter() - start > budget):
            break
        with no_collection():
            began, busy = perf_counter(), busy_elsewhere()
            for contender in order:
                doing(f"round {done + 1}, {contender.name}")
                times = time_steps(contender, steps[contender.name] + 1)[1:]
                timings.seconds[contender.name].append(median(times))
            timings.others.append(max(busy_elsewhere() - busy, 0) / (perf_counter() - began))
        order.reverse()
    return timings

"""Interleaved timing: A, B, C, then C, B, A; ratios within a round, medians over the rounds.

Noise of a shared machine comes in spells. What is compared runs within the same spell, so a ratio
holds where a time does not.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

Step = Callable[[], object]

WARM_UP = 3  # steps before anything is timed: compilation, first touch of slots, plans
FEWEST = 3  # rounds that are run whatever the budget
QUIET = 1.25  # a round with a block this much slower than the contender's better ones is noise


@dataclass(frozen=True)
class Contender:
    """Something whose step is timed.

    Attributes:
        name: What tables call it.
        step: The timed call.
        before: Called before each step, not timed: the rest of a training loop.
    """

    name: str
    step: Step
    before: Step | None = None


@dataclass
class Timings:
    """What was measured: for each contender the seconds of a step, one median for each round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def quiet(self) -> list[int]:
        """The rounds in which no contender was disturbed; all of them if those are too few."""
        rounds = range(min(map(len, self.seconds.values())))
        limits = {name: QUIET * _better(times) for name, times in self.seconds.items() if times}
        found = [
            index
            for index in rounds
            if all(self.seconds[name][index] <= limit for name, limit in limits.items())
        ]
        return found if len(found) >= FEWEST else list(rounds)

    def median(self, name: str) -> float:
        """Seconds of a step."""
        return median(self.seconds[name][index] for index in self.quiet())

    def ratio(self, name: str, anchor: str) -> float:
        """How long a step of `name` takes in units of the anchor's, in the same rounds."""
        one, other = self.seconds[name], self.seconds[anchor]
        return median(one[index] / other[index] for index in self.quiet())


def _better(times: Sequence[float]) -> float:
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


def timed(contender: Contender, steps: int) -> list[float]:
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


def _steps(contender: Contender, block: float) -> int:
    """How many steps make a block."""
    timed(contender, WARM_UP - 1)
    start = perf_counter()
    timed(contender, 1)
    return max(2, min(2000, round(block / (perf_counter() - start))))


def measure(
    contenders: Sequence[Contender],
    *,
    rounds: int = 7,
    block: float = 0.1,
    budget: float = 60.0,
    progress: Callable[[int, int], object] | None = None,
) -> Timings:
    """Time the contenders in interleaved rounds.

    A round gives each contender one block of steps. The first step of a block is not counted: it
    finds the caches full of another's data. The block counts with the median of its other steps.
    Disturbed rounds are repeated, up to as many again.

    Args:
        contenders: What to compare.
        rounds: How many quiet rounds are wanted.
        block: Seconds that a block should last.
        budget: Seconds after which no further round begins, once there are three.
        progress: Called after each round with the number of quiet rounds and the number wanted.
    """
    timings = Timings({contender.name: [] for contender in contenders})
    steps = {contender.name: _steps(contender, block) for contender in contenders}
    order = list(contenders)
    start = perf_counter()
    for done in range(2 * rounds):
        quiet = len(timings.quiet()) if done else 0
        if progress is not None:
            progress(min(quiet, rounds), rounds)
        if quiet >= rounds or (done >= FEWEST and perf_counter() - start > budget):
            break
        with no_collection():
            for contender in order:
                times = timed(contender, steps[contender.name] + 1)[1:]
                timings.seconds[contender.name].append(median(times))
        order.reverse()
    return timings

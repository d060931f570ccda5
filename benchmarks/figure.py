"""A figure with its target, and how figures are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any, Literal

from rich.table import Table

from thalweg._cli.bench.timing import OTHERS, Timings, busy_elsewhere

Sense = Literal["<=", ">="]
_COLORS = {"yes": "green", "no": "red", "?": "yellow"}


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        name: A short name, the same from run to run.
        value: What was measured.
        target: What it should be; None where there is no target.
        sense: Whether the value should be at most or at least the target.
        unit: "x" for a ratio.
        note: What it was measured from, where that is not `times`.
        disturbance: How many cores other processes used while it was measured.
        times: Milliseconds of a step, by contender, all in the same rounds.
        runs: In how many processes it was measured; the value is their median.
    """

    name: str
    value: float
    target: float | None = None
    sense: Sense = "<="
    unit: str = "x"
    note: str = ""
    disturbance: float = 0.0
    times: Mapping[str, float] = field(default_factory=dict)
    runs: int = 1

    @property
    def met(self) -> Literal["yes", "no", "?", ""]:
        """Whether the value is on the right side of its target; "?" if too much else ran.

        Empty where there is no target.
        """
        if self.target is None:
            return ""
        if self.disturbance > OTHERS:
            return "?"
        right = self.value <= self.target if self.sense == "<=" else self.value >= self.target
        return "yes" if right else "no"

    @property
    def measured(self) -> str:
        """The value with its unit."""
        return f"{self.value:.3g} {self.unit}"

    @property
    def wanted(self) -> str:
        """The target with its sense, or nothing."""
        return "" if self.target is None else f"{self.sense} {self.target:.3g}"

    @property
    def origin(self) -> str:
        """What the value was measured from."""
        times = ", ".join(f"{name} {each:.3g} ms" for name, each in self.times.items())
        runs = f"median of {self.runs} runs" if self.runs > 1 else ""
        return "; ".join(part for part in (self.note or times, runs) if part)

    def as_json(self) -> dict[str, Any]:
        """A dictionary of plain values."""
        return asdict(self)


def compared(
    name: str, timings: Timings, one: str, other: str, target: float | None, sense: Sense = "<="
) -> Figure:
    """How long a step of `one` takes in units of the `other`'s, in the same rounds."""
    return Figure(
        name,
        timings.ratio(one, other),
        target,
        sense,
        disturbance=timings.disturbance,
        times={each: 1e3 * timings.median(each) for each in timings.seconds},
    )


@contextmanager
def watched(figures: list[Figure]) -> Iterator[None]:
    """Note in the figures added meanwhile what other processes did."""
    before, began, busy = len(figures), perf_counter(), busy_elsewhere()
    yield
    others = max(busy_elsewhere() - busy, 0) / (perf_counter() - began)
    figures[before:] = [replace(each, disturbance=others) for each in figures[before:]]


def table(figures: Sequence[Figure]) -> Table:
    """The figures, one a line."""
    made = Table()
    for heading in ("figure", "measured", "target", "met", "noise", "from"):
        made.add_column(heading, justify="right" if heading == "measured" else "left")
    for each in figures:
        noise = f"[red]{each.disturbance:.1f}[/]" if each.disturbance > OTHERS else ""
        met = f"[{_COLORS[each.met]}]{each.met}[/]" if each.met else ""
        made.add_row(each.name, each.measured, each.wanted, met, noise, each.origin)
    return made


def middle(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """The figures with the median values, from several processes that measured the same ones."""
    result = []
    for same in zip(*runs, strict=True):  # of no runs, no figures
        wanted = median(figure.value for figure in same)
        nearest = min(same, key=lambda figure: abs(figure.value - wanted))
        result.append(replace(nearest, runs=len(same)))
    return result

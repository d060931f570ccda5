"""Figures with targets, and their display."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Literal

from rich.table import Table

from thalweg._cli.bench.timing import (
    MAX_CORES_OF_OTHERS,
    Contender,
    Timings,
    busy_elsewhere,
    measure,
)

Sense = Literal["<=", ">="]
_COLORS = {"yes": "green", "no": "red", "?": "yellow"}


@dataclass(frozen=True)
class Figure:
    """Measured number.

    Attributes:
        name: A short name, constant over runs.
        value: The number.
        target: The bound that the number should meet, or None.
        sense: Whether the value should be at most or at least the target.
        unit: "x" for a ratio.
        note: The source of the number, if not `times`.
        disturbance: The number of cores that other processes used meanwhile.
        times: Milliseconds of a step, by contender, all in the same rounds.
        runs: The number of processes that measured the number; the value is their median.
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
        """Return whether the value meets the target; "?" if disturbed, "" without a target."""
        if self.target is None:
            return ""
        if self.disturbance > MAX_CORES_OF_OTHERS:
            return "?"
        right = self.value <= self.target if self.sense == "<=" else self.value >= self.target
        return "yes" if right else "no"

    @property
    def measured(self) -> str:
        """Return the value with its unit."""
        return f"{self.value:.3g} {self.unit}"

    @property
    def wanted(self) -> str:
        """Return the target with its sense, or ""."""
        return "" if self.target is None else f"{self.sense} {self.target:.3g}"

    @property
    def origin(self) -> str:
        """Return the note or the times, and the number of runs."""
        times = ", ".join(
            f"{name} {milliseconds:.3g} ms" for name, milliseconds in self.times.items()
        )
        runs = f"median of {self.runs} runs" if self.runs > 1 else ""
        return "; ".join(part for part in (self.note or times, runs) if part)


def measure_ratio(
    name: str,
    contenders: Sequence[Contender],
    target: float | None,
    sense: Sense = "<=",
    *,
    rounds: int = 9,
    block: float = 0.1,
) -> Figure:
    """Time contenders; return the first one's step time in units of the second's, as a figure."""
    timings = measure(contenders, rounds=rounds, block=block)
    first, second, *_ = contenders
    return compared(name, timings, first.name, second.name, target, sense)


def compared(
    name: str,
    timings: Timings,
    contender_name: str,
    unit_name: str,
    target: float | None,
    sense: Sense = "<=",
) -> Figure:
    """Return the figure of a contender's step time in units of another's, in the same rounds."""
    return Figure(
        name,
        timings.ratio(contender_name, unit_name),
        target,
        sense,
        disturbance=timings.disturbance,
        times={contender: 1e3 * timings.median(contender) for contender in timings.seconds},
    )


@contextmanager
def watched(figures: list[Figure]) -> Iterator[None]:
    """Set the disturbance of figures that are added inside the block."""
    first_new, began, busy = len(figures), perf_counter(), busy_elsewhere()
    yield
    cores = max(busy_elsewhere() - busy, 0) / (perf_counter() - began)
    figures[first_new:] = [replace(figure, disturbance=cores) for figure in figures[first_new:]]


def table(figures: Sequence[Figure]) -> Table:
    """Return a table with a row per figure."""
    table_ = Table()
    for heading in ("figure", "measured", "target", "met", "noise", "from"):
        table_.add_column(heading, justify="right" if heading == "measured" else "left")
    for figure in figures:
        noise = (
            f"[red]{figure.disturbance:.1f}[/]" if figure.disturbance > MAX_CORES_OF_OTHERS else ""
        )
        met_cell = f"[{_COLORS[figure.met]}]{figure.met}[/]" if figure.met else ""
        table_.add_row(figure.name, figure.measured, figure.wanted, met_cell, noise, figure.origin)
    return table_


def middle(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Return the run nearest to the median for each figure of several processes."""
    medians = []
    for runs_of_figure in zip(*runs, strict=True):  # of no runs, no figures
        median_value = median(figure.value for figure in runs_of_figure)
        nearest = min(runs_of_figure, key=lambda figure: abs(figure.value - median_value))
        medians.append(replace(nearest, runs=len(runs_of_figure)))
    return medians

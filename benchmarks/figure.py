"""A figure with its target, and how figures are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from rich.table import Table

from thalweg.bench.timing import OTHERS, Timings

_MET = {True: "[green]yes[/]", False: "[red]no[/]", None: "[yellow]?[/]"}


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        name: A short name, the same from run to run.
        value: What was measured.
        target: What it should be.
        sense: Whether the value should be at most or at least the target.
        unit: "x" for a ratio.
        note: What it was measured from.
        disturbance: How many cores other processes used while it was measured.
    """

    name: str
    value: float
    target: float
    sense: Literal["<=", ">="] = "<="
    unit: str = "x"
    note: str = ""
    disturbance: float = 0.0

    @property
    def met(self) -> bool | None:
        """Whether the value is on the right side of the target; None if too much else ran."""
        if self.disturbance > OTHERS:
            return None
        return self.value <= self.target if self.sense == "<=" else self.value >= self.target

    def as_json(self) -> dict[str, Any]:
        """A dictionary of plain values."""
        return {**asdict(self), "met": self.met}


def times(timings: Timings) -> str:
    """The step times behind a figure."""
    return ", ".join(f"{name} {1e3 * timings.median(name):.3g} ms" for name in timings.seconds)


def table(figures: Sequence[Figure]) -> Table:
    """The figures, one a line."""
    made = Table()
    for heading in ("figure", "measured", "target", "met", "noise", "from"):
        made.add_column(heading, justify="right" if heading == "measured" else "left")
    for each in figures:
        noise = f"[red]{each.disturbance:.1f}[/]" if each.disturbance > OTHERS else ""
        made.add_row(
            each.name, f"{each.value:.3g} {each.unit}", f"{each.sense} {each.target:.3g}",
            _MET[each.met], noise, each.note,
        )  # fmt: skip
    return made


def markdown(figures: Sequence[Figure]) -> str:
    """The figures as a Markdown table; a figure measured beside other work is marked `?`."""
    lines = ["| figure | measured | target | met | from |", "|---|---|---|---|---|"]
    for each in figures:
        met = {True: "yes", False: "no", None: "?"}[each.met]
        lines.append(
            f"| {each.name} | {each.value:.3g} {each.unit} | {each.sense} {each.target:.3g} |"
            f" {met} | {each.note} |"
        )
    return "\n".join(lines)


def middle(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Of the same figures measured in several processes, for each the one with the median value."""
    result = []
    for same in zip(*runs, strict=True):  # of no runs, no figures
        wanted = median(figure.value for figure in same)
        result.append(min(same, key=lambda figure: abs(figure.value - wanted)))
    return result

"""Measured rows as a table, as JSON and as a plot."""

# matplotlib does not annotate all of its methods.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import platform
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.table import Table

from thalweg._base.terminal_tables import fitted
from thalweg._cli.bench.compare import ROOFLINE, TIMED_HERE, BenchmarkRow
from thalweg._cli.bench.shapes import ShapeSet
from thalweg._cli.bench.timing import BUDGET, MAX_CORES_OF_OTHERS, SPREAD, Timings, Verdict

_WORST: tuple[Verdict, ...] = ("busy", "unsteady", "quiet")


def format_size(count: float) -> str:
    """Format a number of bytes as `456 B` or `1.2 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def title_of(shapes: ShapeSet) -> str:
    """Return a description of the measured shapes, on one line."""
    return (
        f"{shapes.name}: {len(shapes.shapes):,} tensors, {shapes.parameters:,} parameters, "
        f"{torch.get_num_threads()} threads"
    )


HEADINGS: tuple[str, ...] = (
    "rule", "step by", "ms", "ratio", "GB/s", "of roofline", "extra memory", "state bytes",
)  # fmt: skip
# Columns that a narrow terminal omits, in this order; the others stay.
OPTIONAL_COLUMNS = ("GB/s", "extra memory", "state bytes", "of roofline", "ms")


def table(shapes: ShapeSet, rows: Sequence[BenchmarkRow], width: int) -> Table:
    """Return a table of the rows with as many columns as fit into `width`.

    Rows of a rule are ordered by time, with the roofline last.
    """
    return fitted(partial(_lay_out_table, shapes, rows), HEADINGS, OPTIONAL_COLUMNS, width)


def _lay_out_table(shapes: ShapeSet, rows: Sequence[BenchmarkRow], headings: list[str]) -> Table:
    table_ = Table(
        title=title_of(shapes),
        caption="ratio: to torch.optim.Adam(fused=True), same rounds; state bytes: per parameter",
    )
    for heading in headings:
        if heading in HEADINGS[:2]:
            table_.add_column(heading, overflow="fold")
        else:
            table_.add_column(heading.replace(" ", "\n"), justify="right")
    for rule in dict.fromkeys(row.rule for row in rows):
        rule_rows = [row for row in rows if row.rule == rule]
        for row in sorted(rule_rows, key=lambda row: (row.contender == ROOFLINE, row.ms)):
            style = {**dict.fromkeys(TIMED_HERE, "bold"), ROOFLINE: "dim"}.get(row.contender)
            cells = (
                row.rule, row.contender, f"{row.ms:.3f}", f"{row.ratio:.2f}", f"{row.gbps:.1f}",
                f"{row.of_roofline:.0%}", format_size(row.extra_bytes),
                "" if row.state_bytes is None else f"{row.state_bytes:.2f}",
            )  # fmt: skip
            cell_of: dict[str, str] = dict(zip(HEADINGS, cells, strict=True))
            table_.add_row(*(cell_of[heading] for heading in headings), style=style)
        table_.add_section()
    return table_


def judge_noise(rows: Sequence[BenchmarkRow]) -> dict[str, Any]:
    """Return a dict that says whether measured times can be trusted.

    "verdict" is the worst of the rows: "quiet", "busy" or "unsteady". "cores_of_others", the load
    by other processes, and "spread", the variation of time ratios, are the largest of the rows.
    "trusted" is True if the verdict is "quiet". "message" is then "", else a warning.
    """
    cores_of_others = max((row.disturbance for row in rows), default=0.0)
    verdicts: list[Verdict] = [row.verdict for row in rows] or ["quiet"]
    verdict = min(verdicts, key=_WORST.index)
    verdicts_and_cores: dict[str, Any] = {
        "verdict": verdict,
        "trusted": verdict == "quiet",
        "cores_of_others": cores_of_others,
        "spread": max((row.spread for row in rows), default=0.0),
    }
    return {
        **verdicts_and_cores,
        "message": _noise_message(verdict, [row for row in rows if row.verdict == verdict]),
    }


def _noise_message(verdict: Verdict, rows: Sequence[BenchmarkRow]) -> str:
    if verdict == "quiet":
        return ""
    noisiest = max(rows, key=lambda row: row.disturbance if verdict == "busy" else row.spread)
    rounds = len(noisiest.rounds_ms)
    disturbed = f"{rounds - noisiest.quiet_rounds} of {rounds} rounds were disturbed"
    if verdict == "busy":
        symptom = f"Other processes used {noisiest.disturbance:.1f} cores, {disturbed}"
    elif noisiest.spread > SPREAD:
        symptom = (
            f"Times jumped from round to round (the middle half of the ratios of {noisiest.rule},"
            f" {noisiest.contender}, spans {noisiest.spread:.0%} of their median)"
        )
    else:
        symptom = f"Times jumped from round to round, {disturbed}"
    return f"{symptom}: do not trust these ratios, measure again when the machine is quiet."


def explain_delay(timings: Timings) -> str:
    """Return the reason why a measurement takes longer than its rounds."""
    cores_of_others = median(timings.cores_of_others)
    reason = (
        f"Other processes use {cores_of_others:.1f} cores"
        if cores_of_others > MAX_CORES_OF_OTHERS
        else "Times jump from round to round"
    )
    return f"{reason}: disturbed rounds are repeated, up to {BUDGET:.0f} s a rule."


def report(
    shapes: ShapeSet, rows: Sequence[BenchmarkRow], options: Mapping[str, object]
) -> dict[str, Any]:
    """Return the rows with shapes, threads, options and machine as JSON values."""
    return {
        "shapes": {
            "name": shapes.name,
            "tensors": len(shapes.shapes),
            "parameters": shapes.parameters,
            "bytes": shapes.bytes,
        },
        "threads": torch.get_num_threads(),
        "options": dict(options),
        "noise": judge_noise(rows),
        "anchor": "torch.optim.Adam(fused=True)",
        "machine": {
            "processor": processor_name(),
            "system": platform.system(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "results": [asdict(row) for row in rows],
    }


def processor_name() -> str:
    """Return the processor's name from /proc/cpuinfo, or else from `platform`."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
        return names[0]
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def plot(path: Path, shapes: ShapeSet, rows: Sequence[BenchmarkRow]) -> None:
    """Save a bar chart of step times.

    Raises:
        ImportError: Without matplotlib.
        ValueError: For a file name whose suffix matplotlib does not write.
    """
    figure(shapes, rows).savefig(path, dpi=150)


def figure(shapes: ShapeSet, rows: Sequence[BenchmarkRow]) -> Any:
    """Return a matplotlib figure of step times: bars grouped by rule, with rooflines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rules = list(dict.fromkeys(row.rule for row in rows))
    names = [name for name in dict.fromkeys(row.contender for row in rows) if name != ROOFLINE]
    chart = Figure(figsize=(max(3.5 + 1.6 * len(rules), 6.4), 4.5), layout="constrained")
    FigureCanvasAgg(chart)
    axes = chart.add_subplot()
    width = 0.8 / len(names)
    for offset, name in enumerate(names):
        bars = [(rules.index(row.rule), row.ms) for row in rows if row.contender == name]
        bar_centers = [index - 0.4 + width * (offset + 0.5) for index, _ in bars]
        axes.bar(bar_centers, [ms for _, ms in bars], 0.92 * width, label=name)
    limits = [(rules.index(row.rule), row.ms) for row in rows if row.contender == ROOFLINE]
    for index, ms in limits:
        label = "roofline" if index == limits[0][0] else None
        axes.plot([index - 0.42, index + 0.42], [ms, ms], "k--", linewidth=1, label=label)
    axes.set_xticks(range(len(rules)), rules)
    axes.set_ylabel("ms per step, median")
    warning = judge_noise(rows)["message"]
    lines = [textwrap.fill(text, 70) for text in (title_of(shapes), warning) if text]
    chart.suptitle("\n".join(lines), fontsize=10, color="darkred" if warning else None)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return chart

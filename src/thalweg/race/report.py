"""What a race leaves behind: a ranked table for people, JSON for machines."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from thalweg.race.run import BLOCK, Lane, Race

if TYPE_CHECKING:
    from rich.table import Table

FOOTNOTE = (
    "Ranked by test accuracy, then train loss. us/step: the optimizer's own part of a step, "
    "median; no time includes the first step."
)
PACKAGES = ("thalweg", "torch", "numpy", "numba", "scikit-learn")


def table(race: Race) -> Table:
    """The ranking as a table for a terminal of 80 columns."""
    from rich import box
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    result.add_column("#", justify="right")
    result.add_column("optimizer", style="bold", overflow="fold")
    for heading in ("lr", "train loss", "test acc.", "seconds", "us/step"):
        result.add_column(heading, justify="right")
    for rank, lane in enumerate(race.ranked(), 1):
        style = "green" if rank == 1 and lane.diverged_at is None and lane.evaluations else None
        result.add_row(str(rank), lane.name, *cells(lane), style=style)
    return result


def cells(lane: Lane) -> list[str]:
    """Learning rate, train loss, test accuracy, seconds and microseconds of one lane, as text."""
    rate = "-" if lane.learning_rate is None else f"{lane.learning_rate:g}"
    if lane.diverged_at is not None:
        loss, accuracy = f"NaN at step {lane.diverged_at}", "-"
    elif not lane.evaluations:
        loss, accuracy = f"{lane.losses[-1]:.4f}" if lane.losses else "", ""
    else:
        loss, accuracy = f"{lane.scores.train_loss:.4f}", f"{lane.scores.test_accuracy:.2%}"
    step = lane.step_time * 1e6
    return [
        rate, loss, accuracy, f"{lane.seconds:.2f}", "" if math.isnan(step) else f"{step:,.0f}"
    ]  # fmt: skip


def epochs(race: Race) -> str:
    """The number of epochs, as one writes it."""
    return f"{race.epochs} epoch{'' if race.epochs == 1 else 's'}"


def report(race: Race) -> dict[str, Any]:
    """Everything about the race, as JSON holds it; numbers that are not finite are null."""
    problem = race.problem
    return _finite(
        {
            "format": 1,
            "problem": {
                "name": problem.name,
                "description": problem.description,
                "train_examples": len(problem.train.targets),
                "test_examples": len(problem.test.targets),
                "parameters": sum(p.numel() for p in race.lanes[0].model.parameters()),
            },
            "settings": {
                "seed": race.seed,
                "epochs": race.epochs,
                "steps": race.steps,
                "batch_size": problem.batch_size,
                "block": BLOCK,
                "threads": race.threads,
                "ranks": race.ranks,
            },
            "versions": _versions(),
            "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
            "seconds": race.seconds,
            "results": [_result(rank, lane) for rank, lane in enumerate(race.ranked(), 1)],
        }
    )


def _result(rank: int, lane: Lane) -> dict[str, Any]:
    scores = lane.scores
    return {
        "rank": rank,
        "optimizer": lane.name,
        "source": lane.contestant.source,
        "learning_rate": lane.learning_rate,
        "arguments": dict(lane.contestant.arguments),
        **scores._asdict(),
        "diverged_at": lane.diverged_at,
        "seconds": lane.seconds,
        "first_step_seconds": sum(lane.optimizer_times[:1]),
        "microseconds_per_step": lane.step_time * 1e6,
        "losses": lane.losses,
        "evaluations": [
            {"step": evaluation.step, **evaluation.scores._asdict()}
            for evaluation in lane.evaluations
        ],
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if "thalweg" not in found:
        import thalweg

        found["thalweg"] = thalweg.__version__
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text(race: Race) -> str:
    """The report as JSON."""
    return json.dumps(report(race), indent=2, allow_nan=False)


def save(race: Race, path: Path) -> None:
    """Write the report to a file."""
    with whole(path) as file:
        file.write((text(race) + "\n").encode())


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write that is never left half written: it comes into being at the end."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)  # of an interrupted run, or a link that another user put there
    with open(partial, "xb") as file:
        yield file
    partial.replace(path)

"""Results of a race: a ranked table for people, JSON for machines."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from thalweg._base.terminal_tables import fitted
from thalweg._cli.race import sweep
from thalweg._cli.race.outcome import RaceOutcome
from thalweg._cli.race.run import BLOCK, Lane, Race
from thalweg._cli.race.standings import Standing, rank_contestants
from thalweg._formats import syscalls
from thalweg.version import __version__

if TYPE_CHECKING:
    from rich.table import Table

_TIMES = "us/step: the optimizer's own part of a step, median; no time includes the first step."
_MEASURED = "Steps were measured for the page, which takes time: the times are not to be compared."
# The contestant that the others are compared with, where it races.
BASELINE = "torch:AdamW"
PACKAGES = ("thalweg", "torch", "numpy", "llvmlite", "scikit-learn")


HEADINGS = ("#", "optimizer", "lr", "train loss", "test acc.", "seconds", "us/step")
# What a narrow terminal does without, first to last; the rest stays.
DROPPED = ("seconds", "us/step", "train loss", "lr", "#")


def table(races: Sequence[Race], width: int) -> Table:
    """Return the ranking as a table, with as many columns as fit into the width of a terminal."""
    found = rank_contestants(races)
    rows: list[dict[str, Any]] = []
    for each in found:
        rows.append(
            dict(zip(HEADINGS, (_format_ranks(each), each.name, *cells_of(each)), strict=True))
        )
    styles = ["green" if each.first == 1 and each.is_scored else None for each in found]
    return fitted(partial(_lay_out_table, rows, styles), HEADINGS, DROPPED, width)


def _lay_out_table(
    rows: Sequence[Mapping[str, Any]], styles: Sequence[str | None], headings: list[str]
) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        if heading == "optimizer":
            made.add_column(heading, style="bold", overflow="fold")
        else:
            made.add_column(heading, justify="right")
    for row, style in zip(rows, styles, strict=True):
        made.add_row(*(row[heading] for heading in headings), style=style)
    return made


def _format_ranks(standing: Standing) -> str:
    first, last = standing.first, standing.last
    return str(first) if first == last else f"{first}-{last}"


def cells_of(standing: Standing) -> list[str]:
    """Learning rate, train loss, test accuracy, seconds and microseconds of one, as text."""
    lanes, lane = standing.lanes, standing.lanes[0]
    rate = "-" if lane.learning_rate is None else f"{lane.learning_rate:g}"
    if len(lanes) > 1:
        loss, accuracy = f"{standing.train_loss:.4f}", f"{standing.accuracy:.2%}"
        accuracy += f" ± {100 * standing.spread:.2f}"
        if standing.diverged:
            loss = f"NaN in {standing.diverged} of {len(lanes)}"
    elif lane.diverged_at is not None:
        loss, accuracy = f"NaN at step {lane.diverged_at}", "-"
    elif not lane.evaluations:
        loss, accuracy = f"{lane.losses[-1]:.4f}" if lane.losses else "", ""
    else:
        loss, accuracy = f"{lane.scores.train_loss:.4f}", f"{lane.scores.test_accuracy:.2%}"
    step = standing.step_time * 1e6
    return [
        rate, loss, accuracy, f"{standing.seconds:.2f}", "" if math.isnan(step) else f"{step:,.0f}"
    ]  # fmt: skip


def write_footnotes(races: Sequence[Race]) -> list[str]:
    """Return notes on how the table ranks, and on its limits."""
    measured = [] if races[0].measured_every is None else [_MEASURED]
    if len(races) == 1:
        chance = "With one seed, small differences may be chance: see --seeds."
        ranked = f"Ranked by test accuracy, then train loss. {chance} {_TIMES}"
        return [ranked, *_compare_baseline(races), *measured]
    best, *others = rank_contestants(races)
    near = [each.name for each in others if each.first == 1]
    return [
        f"Ranked by the mean test accuracy of {len(races)} seeds, ± their standard deviation. Of"
        " ranks such as 1-3 the seeds cannot tell which it is: the differences are within the 95 %"
        f" interval of a paired t-test. {_TIMES}",
        f"Not to be told from {best.name}: {', '.join(near)}." if near
        else f"{best.name} is ahead of all others.",
        *_compare_baseline(races),
        *measured,
    ]  # fmt: skip


def _compare_baseline(races: Sequence[Race]) -> list[str]:
    """Return how the time of a step compares with the baseline's, if that races with others."""
    standings = {each.name: each for each in rank_contestants(races)}
    baseline = standings.pop(BASELINE, None)
    if baseline is None or not standings or not baseline.step_time > 0:
        return []
    times = ", ".join(
        f"{each.name} {each.step_time / baseline.step_time:.2g}"
        for each in sorted(standings.values(), key=lambda each: each.step_time)
        if not math.isnan(each.step_time)
    )
    return [f"Time of a step, that of {BASELINE}, the baseline, being 1: {times}."]


def sweep_table(swept: Race, width: int) -> Table:
    """Return the train loss with each learning rate, the rate that won, and a mark at the edges."""
    from rich.text import Text

    rows: list[dict[str, Any]] = []
    for lanes in sweep.lanes_by_rate(swept):
        won = sweep.best_lane(lanes)
        mark = " *" if sweep.is_at_the_edge(lanes) else "  "
        row: dict[str, Any] = {"optimizer": won.name, "lr": f"{won.learning_rate:g}{mark}"}
        for factor, lane in zip(sweep.FACTORS, lanes, strict=True):
            loss = lane.scores.train_loss
            text = f"{loss:.4f}" if math.isfinite(loss) else "NaN"
            row[f"x {factor:g}"] = Text(text, style="green" if lane is won else "")
        rows.append(row)
    factors = [f"x {factor:g}" for factor in sweep.FACTORS]
    dropped = [factors[place] for place in (0, 4, 1, 3, 2)]
    made = partial(_lay_out_table, rows, [None] * len(rows))
    return fitted(made, ["optimizer", "lr", *factors], dropped, width)


def sweep_note(swept: Race) -> str:
    """Return a note on the table of a sweep."""
    note = (
        f"Train loss with {len(sweep.FACTORS)} learning rates each, from"
        f" {sweep.FACTORS[0]:g} to {sweep.FACTORS[-1]:g} times the usual one, seed {swept.seed};"
        " the lowest wins."
    )
    if any(map(sweep.is_at_the_edge, sweep.lanes_by_rate(swept))):
        note += " *: the lowest or highest that was tried, so one beyond may be better."
    return note


def format_seeds(races: Sequence[Race]) -> str:
    """Return the seeds, as one writes them."""
    first, last = races[0].seed, races[-1].seed
    return f"seed {first}" if first == last else f"seeds {first} to {last}"


def format_epochs(race: Race) -> str:
    """Return the number of epochs, as one writes it."""
    return f"{race.epochs} epoch{'' if race.epochs == 1 else 's'}"


def report(outcome: RaceOutcome) -> dict[str, Any]:
    """Return everything that was raced as JSON values; numbers that are not finite are null.

    With one seed the results have all losses; with several they have means, and "races" the rest.
    """
    race, problem = outcome.race, outcome.race.problem
    several = len(outcome.races) > 1
    told = {
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
            "seeds": [each.seed for each in outcome.races],
            "epochs": race.epochs,
            "steps": race.steps,
            "batch_size": problem.batch_size,
            "block": BLOCK,
            "threads": race.threads,
            "ranks": race.ranks,
            "measured_every": race.measured_every,
            "baseline": BASELINE if any(lane.name == BASELINE for lane in race.lanes) else None,
        },
        "versions": list_versions(),
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "seconds": outcome.seconds,
        "stopped": outcome.stopped,
        "stopped_at_step": race.step if race.stopped else None,
    }
    if outcome.swept is not None:
        told["sweep"] = [_rates_of(lanes) for lanes in sweep.lanes_by_rate(outcome.swept)]
    found = rank_contestants(outcome.races)
    if several:
        told["results"] = [_mean_of(each) for each in found]
        told["races"] = [
            {"seed": each.seed, "results": _make_results(rank_contestants([each]))}
            for each in outcome.races
        ]
    else:
        told["results"] = _make_results(found)
    return _finite(told)


def _rates_of(lanes: Sequence[Lane]) -> dict[str, Any]:
    best = sweep.best_lane(lanes)
    return {
        "optimizer": best.name,
        "learning_rate": best.learning_rate,
        "at_the_edge": sweep.is_at_the_edge(lanes),
        "tried": [{"learning_rate": lane.learning_rate, **lane.scores._asdict()} for lane in lanes],
    }


def _mean_of(standing: Standing) -> dict[str, Any]:
    lane = standing.lanes[0]
    return {
        "rank": standing.first,
        "last_rank": standing.last,
        "optimizer": lane.name,
        "source": lane.contestant.source,
        "learning_rate": lane.learning_rate,
        "arguments": _plain_arguments(lane),
        "train_loss": standing.train_loss,
        "test_accuracy": standing.accuracy,
        "test_accuracy_stdev": standing.spread,
        "test_accuracies": standing.accuracies,
        "diverged": standing.diverged,
        "seconds": standing.seconds,
        "microseconds_per_step": standing.step_time * 1e6,
    }


def _plain_arguments(lane: Lane) -> dict[str, Any]:
    """Return the arguments of a contestant; the text of those that JSON lacks."""
    return {
        name: value if isinstance(value, bool | int | float | str | None) else repr(value)
        for name, value in lane.contestant.arguments.items()
    }


def _make_results(found: Sequence[Standing]) -> list[dict[str, Any]]:
    return [_make_result(rank, each.lanes[0]) for rank, each in enumerate(found, start=1)]


def _make_result(rank: int, lane: Lane) -> dict[str, Any]:
    scores = lane.scores
    return {
        "rank": rank,
        "optimizer": lane.name,
        "source": lane.contestant.source,
        "learning_rate": lane.learning_rate,
        "arguments": _plain_arguments(lane),
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


def list_versions() -> dict[str, str]:
    """Return the versions of what computes."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if "thalweg" not in found:
        found["thalweg"] = __version__
    return found


def _finite(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text(outcome: RaceOutcome) -> str:
    """Return the report as JSON."""
    return json.dumps(report(outcome), indent=2, allow_nan=False)


def save(outcome: RaceOutcome, path: Path) -> None:
    """Write the report to a file."""
    with whole(path) as file:
        file.write((text(outcome) + "\n").encode())


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file that is never left half written: it comes into being at the end of the block.

    It is closed to whom the file that it replaces was, and to whom the umask is.
    """
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)  # of an interrupted run, or a link that another user put there
    old = path.stat() if path.exists() and not path.is_symlink() else None
    mode = 0o666 if old is None else old.st_mode & 0o666 | 0o600
    with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        if old is not None:
            syscalls.give_ownership(file.fileno(), old)
        yield file
    partial.replace(path)

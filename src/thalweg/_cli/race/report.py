"""Results of a race as a ranked table and as JSON."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from thalweg._base.terminal_tables import fitted
from thalweg._cli.race import sweep
from thalweg._cli.race.outcome import RaceOutcome
from thalweg._cli.race.run import BLOCK, Lane, Race
from thalweg._cli.race.standings import Standing, format_ranks, rank_contestants
from thalweg._cli.report.json_values import plain_values
from thalweg._formats import syscalls
from thalweg.version import __version__

if TYPE_CHECKING:
    from rich.table import Table

_TIMES = "us/step: the optimizer's own part of a step, median; no time includes the first step."
_MEASURING_NOTE = (
    "Steps were measured for the page, which takes time: the times are not to be compared."
)
# The contestant whose step time is the unit of the others.
BASELINE = "torch:AdamW"
PACKAGES = ("thalweg", "torch", "numpy", "llvmlite", "scikit-learn")


HEADINGS = ("#", "optimizer", "lr", "train loss", "test acc.", "seconds", "us/step")
# Columns that a narrow terminal omits, in this order; the others stay.
OPTIONAL_COLUMNS = ("seconds", "us/step", "train loss", "lr", "#")


def table(races: Sequence[Race], width: int) -> Table:
    """Return the ranking as a table with as many columns as fit into `width`."""
    standings = rank_contestants(races)
    rows: list[dict[str, Any]] = []
    for ranked in standings:
        ranks = format_ranks(ranked.first, ranked.last)
        rows.append(dict(zip(HEADINGS, (ranks, ranked.name, *cells_of(ranked)), strict=True)))
    winners = [ranked.first == 1 and ranked.is_scored for ranked in standings]
    return lay_out_table(rows, OPTIONAL_COLUMNS, width, winners)


def lay_out_table(
    rows: Sequence[Mapping[str, Any]],
    optional: Sequence[str],
    width: int,
    winners: Sequence[bool] = (),
) -> Table:
    """Return a rich table with as many columns as fit into `width`.

    Args:
        rows: {heading: cell} of each row. All have the same headings.
        optional: The headings of columns that a narrow table omits, in this order.
        winners: Optional. True for each row to print in green.
    """
    from rich import box
    from rich.table import Table

    def make(headings: list[str]) -> Table:
        table_ = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in headings:
            if heading == "optimizer":
                table_.add_column(heading, style="bold", overflow="fold")
            else:
                table_.add_column(heading, justify="right")
        for row, won in zip_longest(rows, winners):
            cells = (row[heading] for heading in headings)
            table_.add_row(*cells, style="green" if won else None)
        return table_

    return fitted(make, list(rows[0]), optional, width)


def cells_of(ranked: Standing) -> list[str]:
    """Return texts: learning rate, train loss, test accuracy, seconds, microseconds per step."""
    lanes, lane = ranked.lanes, ranked.lanes[0]
    rate = "-" if lane.learning_rate is None else f"{lane.learning_rate:g}"
    if len(lanes) > 1:
        loss, accuracy = f"{ranked.train_loss:.4f}", f"{ranked.accuracy:.2%}"
        accuracy += f" ± {100 * ranked.spread:.2f}"
        if ranked.diverged:
            loss = f"NaN in {ranked.diverged} of {len(lanes)}"
    elif lane.diverged_at is not None:
        loss, accuracy = f"NaN at step {lane.diverged_at}", "-"
    elif not lane.evaluations:
        loss, accuracy = f"{lane.losses[-1]:.4f}" if lane.losses else "", ""
    else:
        loss, accuracy = f"{lane.scores.train_loss:.4f}", f"{lane.scores.test_accuracy:.2%}"
    step = ranked.step_time * 1e6
    return [
        rate, loss, accuracy, f"{ranked.seconds:.2f}", "" if math.isnan(step) else f"{step:,.0f}"
    ]  # fmt: skip


def write_footnotes(races: Sequence[Race]) -> list[str]:
    """Return notes on the ranking method, and on the limits of a ranking."""
    measuring_note = [] if races[0].record_interval is None else [_MEASURING_NOTE]
    if len(races) == 1:
        chance = "With one seed, small differences may be chance: see --seeds."
        ranking_note = f"Ranked by test accuracy, then train loss. {chance} {_TIMES}"
        return [ranking_note, *_compare_baseline(races), *measuring_note]
    best, *other_standings = rank_contestants(races)
    close_names = [rival.name for rival in other_standings if rival.first == 1]
    return [
        f"Ranked by the mean test accuracy of {len(races)} seeds, ± their standard deviation. Of"
        " ranks such as 1-3 the seeds cannot tell which it is: the differences are within the 95 %"
        f" interval of a paired t-test. {_TIMES}",
        f"Not to be told from {best.name}: {', '.join(close_names)}." if close_names
        else f"{best.name} is ahead of all others.",
        *_compare_baseline(races),
        *measuring_note,
    ]  # fmt: skip


def _compare_baseline(races: Sequence[Race]) -> list[str]:
    """Return [note on step times relative to `BASELINE`]; [] if `BASELINE` is not in the races."""
    standings = {ranked.name: ranked for ranked in rank_contestants(races)}
    baseline = standings.pop(BASELINE, None)
    if baseline is None or not standings or not baseline.step_time > 0:
        return []
    times = ", ".join(
        f"{ranked.name} {ranked.step_time / baseline.step_time:.2g}"
        for ranked in sorted(standings.values(), key=lambda ranked: ranked.step_time)
        if not math.isnan(ranked.step_time)
    )
    return [f"Time of a step, that of {BASELINE}, the baseline, being 1: {times}."]


def sweep_table(swept: Race, width: int) -> Table:
    """Return a table of the train loss per learning rate, with the best rate of each contestant."""
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
    optional = [factors[index] for index in (0, 4, 1, 3, 2)]
    return lay_out_table(rows, optional, width)


def sweep_note(swept: Race) -> str:
    """Return a note that explains the table of `sweep_table`."""
    note = (
        f"Train loss with {len(sweep.FACTORS)} learning rates each, from"
        f" {sweep.FACTORS[0]:g} to {sweep.FACTORS[-1]:g} times the usual one, seed {swept.seed};"
        " the lowest wins."
    )
    if any(map(sweep.is_at_the_edge, sweep.lanes_by_rate(swept))):
        note += " *: the lowest or highest that was tried, so one beyond may be better."
    return note


def format_seeds(races: Sequence[Race]) -> str:
    """Format the seeds as `seed 0` or `seeds 0 to 4`."""
    initial, final = races[0].seed, races[-1].seed
    return f"seed {initial}" if initial == final else f"seeds {initial} to {final}"


def format_epochs(race: Race) -> str:
    """Format the number of epochs as `1 epoch` or `3 epochs`."""
    return f"{race.epochs} epoch{'' if race.epochs == 1 else 's'}"


def _describe_problem(race: Race) -> dict[str, Any]:
    """Return the name and the sizes of the problem of a race."""
    problem = race.problem
    return {
        "name": problem.name,
        "description": problem.description,
        "train_examples": len(problem.train.targets),
        "test_examples": len(problem.test.targets),
        "parameters": sum(p.numel() for p in race.lanes[0].model.parameters()),
    }


def report(outcome: RaceOutcome) -> dict[str, Any]:
    """Return a race as JSON values; numbers that are not finite are null.

    "results" has an entry per contestant, the best first. With several seeds, an entry has means
    over the seeds, and "races" has the entries of each seed.
    """
    race = outcome.race
    has_many_seeds = len(outcome.races) > 1
    document: dict[str, Any] = {
        "format": 1,
        "problem": _describe_problem(race),
        "settings": {
            "seed": race.seed,
            "seeds": [seed_race.seed for seed_race in outcome.races],
            "epochs": race.epochs,
            "steps": race.steps,
            "batch_size": race.problem.batch_size,
            "block": BLOCK,
            "threads": race.threads,
            "ranks": race.ranks,
            "measured_every": race.record_interval,
            "baseline": BASELINE if any(lane.name == BASELINE for lane in race.lanes) else None,
        },
        "versions": list_versions(),
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "seconds": outcome.seconds,
        "stopped": outcome.stopped,
        "stopped_at_step": race.step if race.stopped else None,
    }
    if outcome.swept is not None:
        document["sweep"] = [_rates_of(lanes) for lanes in sweep.lanes_by_rate(outcome.swept)]
    standings = rank_contestants(outcome.races)
    if has_many_seeds:
        document["results"] = [_describe_means(ranked) for ranked in standings]
        document["races"] = [
            {"seed": seed_race.seed, "results": _make_results(rank_contestants([seed_race]))}
            for seed_race in outcome.races
        ]
    else:
        document["results"] = _make_results(standings)
    return plain_values(document)


def _rates_of(lanes: Sequence[Lane]) -> dict[str, Any]:
    best = sweep.best_lane(lanes)
    return {
        "optimizer": best.name,
        "learning_rate": best.learning_rate,
        "at_the_edge": sweep.is_at_the_edge(lanes),
        "tried": [{"learning_rate": lane.learning_rate, **lane.scores._asdict()} for lane in lanes],
    }


def _describe_means(ranked: Standing) -> dict[str, Any]:
    """Return the means of a contestant over all seeds as JSON values."""
    return {
        "rank": ranked.first,
        "last_rank": ranked.last,
        **_describe_contestant(ranked.lanes[0]),
        "train_loss": ranked.train_loss,
        "test_accuracy": ranked.accuracy,
        "test_accuracy_stdev": ranked.spread,
        "test_accuracies": ranked.accuracies,
        "diverged": ranked.diverged,
        "seconds": ranked.seconds,
        "microseconds_per_step": ranked.step_time * 1e6,
    }


def _describe_contestant(lane: Lane) -> dict[str, Any]:
    """Return a contestant as JSON values; arguments of types that JSON lacks become texts."""
    return {
        "optimizer": lane.name,
        "source": lane.contestant.source,
        "learning_rate": lane.learning_rate,
        "arguments": {
            name: value if isinstance(value, bool | int | float | str | None) else repr(value)
            for name, value in lane.contestant.arguments.items()
        },
    }


def _make_results(standings: Sequence[Standing]) -> list[dict[str, Any]]:
    return [_make_result(rank, ranked.lanes[0]) for rank, ranked in enumerate(standings, start=1)]


def _make_result(rank: int, lane: Lane) -> dict[str, Any]:
    return {
        "rank": rank,
        **_describe_contestant(lane),
        **lane.scores._asdict(),
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
    """Return the versions of Python and of the packages that affect results."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if "thalweg" not in versions:
        versions["thalweg"] = __version__
    return versions


def text(outcome: RaceOutcome) -> str:
    """Return the report as JSON."""
    return json.dumps(report(outcome), indent=2, allow_nan=False)


def save(outcome: RaceOutcome, path: Path) -> None:
    """Write the report to a file."""
    with whole(path) as file:
        file.write((text(outcome) + "\n").encode())


@contextmanager
def whole(path: Path) -> Generator[BinaryIO]:
    """Open a temporary file for writing; the end of the `with` block renames the file to `path`.

    An error leaves the old file unchanged. The new file has the permissions of the old file, and
    the owner of the old file if the system allows this. The owner can always read and write.
    """
    partial = path.with_name(f".{path.name}.partial")
    # A leftover of an interrupted run, or a link that another user created.
    partial.unlink(missing_ok=True)
    old = path.stat() if path.exists() and not path.is_symlink() else None
    # Mode x fails if another user has created a file or link of this name meanwhile.
    mode = 0o666 if old is None else 0o600
    with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        if old is not None:
            syscalls.copy_access(file.fileno(), old)
        yield file
    partial.replace(path)

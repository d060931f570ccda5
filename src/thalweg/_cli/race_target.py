"""`thalweg race --target`: who reaches a fixed loss first, tuning being a part of the protocol."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from thalweg._cli.console import make_console
from thalweg._cli.options import Stopped
from thalweg._cli.output_paths import check_writable
from thalweg._cli.progress import watch_shares

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from thalweg._cli.race.target.profile import RankedRun
    from thalweg._cli.race.target.results import Results, StudyPlan
    from thalweg._cli.race.target.summary import Summary


class TargetOptions(NamedTuple):
    """Options of the command line."""

    optimizers: Sequence[str] | None
    problems: Sequence[str]
    trials: int
    studies: int
    seed: int
    threads: int
    jobs: int
    out: Path
    resume: bool
    as_json: bool


def race_to_targets(chosen: TargetOptions) -> None:
    """Run all trials that are still to be run, print two tables, and draw the picture."""
    from thalweg._cli.race.target import picture
    from thalweg._cli.race.target.run_trials import run_all
    from thalweg._cli.race.target.summary import as_json, summarize

    plan = _make_plan(chosen)
    written = [chosen.out / "target.json", chosen.out / "target.svg"]
    check_writable(chosen.out, written)
    results = _begin(plan, written[0], chosen.resume)
    try:
        with watch_shares("first trials") as tell:
            run_all(results, written[0], chosen.jobs, lambda share, text: tell(share, lambda: text))
    except KeyboardInterrupt as error:
        if not results.ran:
            raise
        raise Stopped(
            f"stopped; {len(results.ran)} of {len(plan.trial_keys())} trials are kept: the same"
            " command with --resume goes on."
        ) from error
    summary = summarize(results)
    results.save(written[0], as_json(summary))
    picture.save(results, summary, written[1])
    if chosen.as_json:
        click.echo(results.text(as_json(summary)), nl=False)
    else:
        _print(make_console(), results, summary, written)


def _make_plan(chosen: TargetOptions) -> StudyPlan:
    from thalweg._cli.race.errors import RaceError
    from thalweg._cli.race.target.results import StudyPlan
    from thalweg._cli.race.target.search_spaces import DEFAULT, find_spaces

    try:
        spaces = find_spaces(DEFAULT if chosen.optimizers is None else chosen.optimizers)
    except RaceError as error:
        raise click.UsageError(str(error)) from error
    return StudyPlan(
        chosen.problems, spaces, chosen.trials, chosen.studies, chosen.seed, chosen.threads
    )


def _begin(plan: StudyPlan, path: Path, resumes: bool) -> Results:
    """What a file has of the plan, or nothing; trials of others are not lost by mistake."""
    from thalweg._cli.race.target.results import Results, has_unfinished, resume

    if resumes:
        return resume(plan, path)
    if has_unfinished(path):
        raise click.UsageError(
            f"'{path}' has trials of a race that was stopped: --resume goes on with them; to begin"
            " anew, move it away or name another --out."
        )
    return Results(plan)


def _print(console: Console, results: Results, summary: Summary, written: list[Path]) -> None:
    from thalweg._cli.race.target.summary import write_notes

    plan = results.plan
    console.print("[bold]Steps to the target[/bold]", highlight=False)
    console.print(_table_of_steps(plan, summary, console.width))
    console.print("[bold]Seconds to the target[/bold]", highlight=False)
    console.print(_table(plan, summary.seconds, _tell_seconds, [], console.width))
    for note in write_notes(results, summary):
        console.print(note, style="dim", highlight=False)
    saved = "Saved " + ", ".join(map(str, written))
    console.print(saved, markup=False, highlight=False, soft_wrap=True)


def _table_of_steps(plan: StudyPlan, summary: Summary, width: int) -> Table:
    further = [
        {"hits": f"{tuning.hits}/{tuning.studies}", "tuning": f"{tuning.steps:,.0f}"}
        for tuning in (summary.tuning[each.name] for each in summary.steps)
    ]
    return _table(plan, summary.steps, _tell_steps, further, width)


def _tell_steps(cost: float) -> str:
    return f"{cost:,.0f}" if math.isfinite(cost) else "-"


def _tell_seconds(cost: float) -> str:
    return f"{cost:.2f}" if math.isfinite(cost) else "-"


def _table(
    plan: StudyPlan, placed: Sequence[RankedRun], tell: Callable[[float], str],
    further: Sequence[dict[str, str]], width: int,
) -> Table:  # fmt: skip
    """A ranking, with as many columns as fit into the width of a terminal."""
    from thalweg._base.terminal_tables import fitted

    rows: list[dict[str, str]] = []
    for number, each in enumerate(placed):
        ranks = str(each.first) if each.first == each.last else f"{each.first}-{each.last}"
        costs = {name: tell(cost) for name, cost in each.costs.items()}
        own = further[number] if further else {}
        rows.append(
            {"#": ranks, "optimizer": each.name, "score": f"{each.score:.3f}", **costs, **own}
        )
    headings = list(rows[0])
    dropped = ["hits", "tuning", *reversed(plan.problems), "#"]
    return fitted(partial(_lay_out, rows), headings, [x for x in dropped if x in headings], width)


def _lay_out(rows: Sequence[dict[str, str]], headings: list[str]) -> Any:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        is_name = heading == "optimizer"
        made.add_column(
            heading, justify="left" if is_name else "right", style="bold" if is_name else None,
            overflow="fold",
        )  # fmt: skip
    for row in rows:
        made.add_row(*(row[heading] for heading in headings))
    return made

"""`thalweg race --target`: time to a fixed loss, including the tuning of hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from thalweg._base.literals import split_at_commas
from thalweg._cli.console import make_console
from thalweg._cli.options import RaceOptions, Stopped, usable_cores
from thalweg._cli.output_paths import check_writable
from thalweg._cli.progress import watch_fraction
from thalweg._cli.race.errors import RaceError
from thalweg._cli.race.report import lay_out_table
from thalweg._cli.race.standings import format_ranks
from thalweg._cli.race.target import picture
from thalweg._cli.race.target.profile import RankedRun
from thalweg._cli.race.target.results import Results, StudyPlan, has_unfinished, resume
from thalweg._cli.race.target.run_trials import run_all
from thalweg._cli.race.target.search_spaces import DEFAULT, find_spaces
from thalweg._cli.race.target.summary import Summary, as_json, summarize, write_notes


def race_to_targets(options: RaceOptions) -> None:
    """Run the remaining trials, print two tables or JSON, and save target.json and target.svg."""
    plan = _make_plan(options)
    output_paths = [options.out / "target.json", options.out / "target.svg"]
    check_writable(options.out, output_paths)
    results = _begin(plan, output_paths[0], options.resume)
    try:
        with watch_fraction("first trials") as show:
            jobs = options.jobs or max(1, usable_cores() // options.threads)
            run_all(
                results, output_paths[0], jobs, lambda fraction, text: show(fraction, lambda: text)
            )
    except KeyboardInterrupt as error:
        if not results.outcomes:
            raise
        raise Stopped(
            f"stopped; {len(results.outcomes)} of {len(plan.trial_keys())} trials are kept: the"
            " same command with --resume goes on."
        ) from error
    summary = summarize(results)
    results.save(output_paths[0], as_json(summary))
    picture.save(results, summary, output_paths[1])
    if options.as_json:
        click.echo(results.text(as_json(summary)), nl=False)
    else:
        _print(make_console(), results, summary, output_paths)


def _make_plan(options: RaceOptions) -> StudyPlan:
    try:
        names = DEFAULT if options.optimizers is None else split_at_commas(options.optimizers)
        spaces = find_spaces(names)
    except RaceError as error:
        raise click.UsageError(str(error)) from error
    return StudyPlan(
        options.problems, spaces, options.trials, options.studies, options.seed, options.threads
    )


def _begin(plan: StudyPlan, path: Path, resumes: bool) -> Results:
    """Return the results in the file if `resumes`, else empty results.

    Raises:
        click.UsageError: `resumes` is False, and the file has unfinished trials.
    """
    if resumes:
        return resume(plan, path)
    if has_unfinished(path):
        raise click.UsageError(
            f"'{path}' has trials of a race that was stopped: --resume goes on with them; to begin"
            " anew, move it away or name another --out."
        )
    return Results(plan)


def _print(console: Console, results: Results, summary: Summary, output_paths: list[Path]) -> None:
    plan = results.plan
    console.print("[bold]Steps to the target[/bold]", highlight=False)
    extra_cells = [
        {"hits": f"{tuning.hits}/{tuning.studies}", "tuning": f"{tuning.steps:,.0f}"}
        for tuning in (summary.tuning[run.name] for run in summary.steps)
    ]
    console.print(_table(plan, summary.steps, ",.0f", extra_cells, console.width))
    console.print("[bold]Seconds to the target[/bold]", highlight=False)
    console.print(_table(plan, summary.seconds, ".2f", [], console.width))
    for note in write_notes(results, summary):
        console.print(note, style="dim", highlight=False)
    saved_line = "Saved " + ", ".join(map(str, output_paths))
    console.print(saved_line, markup=False, highlight=False, soft_wrap=True)


def _table(
    plan: StudyPlan, ranking: Sequence[RankedRun], cost_format: str,
    extra_cells: Sequence[dict[str, str]], width: int,
) -> Table:  # fmt: skip
    """Return a table of a ranking, with as many columns as fit into `width`.

    Costs are formatted by `cost_format`, or "-" if infinite. `extra_cells` is empty, or has a
    dict {heading: cell} for each row.
    """
    rows: list[dict[str, str]] = []
    for index, run in enumerate(ranking):
        ranks = format_ranks(run.first, run.last)
        costs = {name: f"{cost:{cost_format}}" if math.isfinite(cost) else "-"
                 for name, cost in run.costs.items()}  # fmt: skip
        extra = extra_cells[index] if extra_cells else {}
        rows.append(
            {"#": ranks, "optimizer": run.name, "score": f"{run.score:.3f}", **costs, **extra}
        )
    return lay_out_table(rows, ["hits", "tuning", *reversed(plan.problems), "#"], width)

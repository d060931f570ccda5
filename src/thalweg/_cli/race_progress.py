"""Display of a running race: a bar and the standings on a terminal, lines in a log."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

from rich import progress as bars
from rich.console import Console, Group
from rich.live import Live

from thalweg._cli.log_progress import ProgressLines
from thalweg._cli.race import report
from thalweg._cli.race.outcome import Fraction, Progress
from thalweg._cli.race.run import Race

INTERVAL = 0.2


@contextmanager
def watch_race(console: Console, problem: str) -> Generator[Progress]:
    """Yield `progress(fraction, race)`, which shows the race at most every `INTERVAL` seconds."""
    if not console.is_terminal:
        yield _in_lines(ProgressLines())
        return

    bar = bars.Progress(
        bars.TextColumn("{task.description}"), bars.BarColumn(),
        bars.TextColumn("{task.percentage:3.0f} %"), bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(), auto_refresh=False,
    )  # fmt: skip
    task = bar.add_task(f"loading {problem}", total=None)
    last_update = 0.0
    # Refreshed between blocks of steps: a refreshing thread would disturb timed steps.
    with Live(bar, console=console, transient=True, auto_refresh=False) as live:
        live.refresh()

        def progress(fraction: Fraction, race: Race) -> None:
            nonlocal last_update
            if monotonic() - last_update < INTERVAL:
                return
            bar.update(
                task,
                description=_describe_step(race, fraction),
                total=1.0,
                completed=fraction.done(race),
            )
            # With several learning rates each, there are more lanes than lines.
            table = [] if fraction.searching else [report.table([race], console.width)]
            display: object = Group(bar, *table)
            live.update(display, refresh=True)
            last_update = monotonic()

        yield progress


def _in_lines(lines: ProgressLines) -> Progress:
    def progress(fraction: Fraction, race: Race) -> None:
        def text() -> str:
            best = race.ranked()[0]
            ahead = f", ahead: {best.name} with {best.scores.test_accuracy:.1%}"
            scored = best.evaluations and best.diverged_at is None
            return f"{_describe_step(race, fraction)} of {race.steps:,}{ahead if scored else ''}"

        lines.show(fraction.done(race), text)

    return progress


def _describe_step(race: Race, fraction: Fraction) -> str:
    return f"{fraction.label}, step {race.step:,}" if fraction.label else f"step {race.step:,}"

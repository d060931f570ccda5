"""What one sees while a race runs: a bar and the standings, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from thalweg.race.run import Race

INTERVAL = 0.2


@contextmanager
def watch(console: Console, problem: str) -> Iterator[Callable[[Race], None] | None]:
    """A callback for `run` that keeps the display current; None where there is no terminal."""
    if not console.is_terminal:
        yield None
        return
    from rich.console import Group
    from rich.live import Live
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from thalweg.race import report

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(), TimeRemainingColumn(), auto_refresh=False,
    )  # fmt: skip
    task = bar.add_task(f"loading {problem}", total=None)
    last = 0.0
    # Refreshed between blocks of steps: a thread of its own would take time from someone's step.
    with Live(bar, console=console, transient=True, auto_refresh=False) as live:
        live.refresh()

        def progress(race: Race) -> None:
            nonlocal last
            if monotonic() - last < INTERVAL:
                return
            bar.update(
                task, description=f"step {race.step:,}", total=race.steps, completed=race.step
            )
            shown: Any = Group(bar, report.table(race))
            live.update(shown, refresh=True)
            last = monotonic()

        yield progress

"""Progress of a command: a bar on a terminal, lines in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from thalweg._cli.console import make_console
from thalweg._cli.log_progress import ProgressLines


@contextmanager
def watch_shares(title: str) -> Iterator[Callable[[float, Callable[[], str]], None]]:
    """A callback that takes a share from 0 to 1, and what makes words for what is done."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield ProgressLines().tell
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    # Refreshed by the callback: a thread of its own would take time from those that are timed.
    with Progress(
        TextColumn("{task.description}", markup=False), BarColumn(),
        TextColumn("{task.percentage:3.0f} %"), TimeElapsedColumn(), console=console,
        transient=True, auto_refresh=False,
    ) as bar:  # fmt: skip
        task = bar.add_task(title, total=1.0)
        bar.refresh()
        yield lambda share, text: bar.update(
            task, description=text(), completed=share, refresh=True
        )


@contextmanager
def show_busy(text: str) -> Iterator[None]:
    """Show on a terminal that something is under way whose length nobody knows."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield
        return
    from rich.text import Text

    with console.status(Text(text)):  # no markup: it may be what a user wrote
        yield

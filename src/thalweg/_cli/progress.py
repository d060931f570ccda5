"""Progress of a command: a bar on a terminal, lines in a log."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from thalweg._cli.console import make_console
from thalweg._cli.log_progress import ProgressLines


@contextmanager
def watch_fraction(label: str) -> Generator[Callable[[float, Callable[[], str]], None]]:
    """Yield `show(fraction, text)`, which shows progress from 0 to 1; `text()` returns the text."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield ProgressLines().show
        return

    # The callback refreshes the bar: a refreshing thread would disturb timings.
    with Progress(
        TextColumn("{task.description}", markup=False), BarColumn(),
        TextColumn("{task.percentage:3.0f} %"), TimeElapsedColumn(), console=console,
        transient=True, auto_refresh=False,
    ) as bar:  # fmt: skip
        task = bar.add_task(label, total=1.0)
        bar.refresh()
        yield lambda fraction, text: bar.update(
            task, description=text(), completed=fraction, refresh=True
        )


@contextmanager
def show_busy(text: str) -> Generator[None]:
    """Show a text with a spinner during a `with` block if standard error is a terminal."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield
        return

    # As `Text`, because a user's text may contain markup.
    with console.status(Text(text)):
        yield

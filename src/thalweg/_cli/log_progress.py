"""Progress of a command as plain lines for a log."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import click

SOONEST, LATEST = 15.0, 600.0  # seconds between lines
SHARE = 0.1


class ProgressLines:
    """Progress lines on stderr, one for each tenth of the work.

    Lines are at least `SOONEST` and at most `LATEST` seconds apart if `tell` is called often.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began = self._told = clock()
        self._share = 0.0

    def tell(self, share: float, text: Callable[[], str]) -> None:
        """Print a line if one is due.

        Args:
            share: Completed share of the work, from 0 to 1.
            text: Returns the text of the line; called only for a line that is printed.
        """
        now = self._clock()
        waited, progress = now - self._told, share - self._share
        is_first = self._told == self._began
        if waited < SOONEST or not (is_first or progress >= SHARE or waited >= LATEST):
            return
        self._told, self._share = now, share
        click.echo(f"{text()}, {share:.0%}, {_clock_of(now - self._began)}", err=True)


def _clock_of(seconds: float) -> str:
    """Format a duration as `0:42` or `1:02:03`."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"

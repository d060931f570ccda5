"""Progress of a command as plain lines for a log."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import click

SOONEST, LATEST = 15.0, 600.0  # seconds between lines
LEAST_STEP = 0.1


class ProgressLines:
    """Progress lines on stderr, one for each tenth of the work.

    Lines are at least `SOONEST` and at most `LATEST` seconds apart if `show` is called often.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began = self._last_time = clock()
        self._last_fraction = 0.0

    def show(self, fraction: float, text: Callable[[], str]) -> None:
        """Print a line if enough time and work have passed since the last line.

        Args:
            fraction: Completed fraction of the work, from 0 to 1.
            text: `text()` returns the line's text; called only if the line is printed.
        """
        now = self._clock()
        waited, progress = now - self._last_time, fraction - self._last_fraction
        is_first = self._last_time == self._began
        if waited < SOONEST or not (is_first or progress >= LEAST_STEP or waited >= LATEST):
            return
        self._last_time, self._last_fraction = now, fraction
        click.echo(f"{text()}, {fraction:.0%}, {_clock_of(now - self._began)}", err=True)


def _clock_of(seconds: float) -> str:
    """Format a duration as `0:42` or `1:02:03`."""
    minutes, seconds_of_minute = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours}:{minutes:02}:{seconds_of_minute:02}"
        if hours
        else f"{minutes}:{seconds_of_minute:02}"
    )

"""Progress in plain lines, for a log."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import click

SOONEST, LATEST = 15.0, 600.0  # seconds between lines
SHARE = 0.1


class ProgressLines:
    """Lines on stderr: a first one soon, then after each tenth of the work, but not every few
    seconds, nor hours apart. What takes less than `SOONEST` seconds is done without a line.

    Args:
        clock: Tells seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began = self._told = clock()
        self._share = 0.0

    def tell(self, share: float, text: Callable[[], str]) -> None:
        """Tell how far it is, if it is time to.

        Args:
            share: How much of the work is done, from 0 to 1.
            text: Makes the line.
        """
        now = self._clock()
        waited, further = now - self._told, share - self._share
        is_first = self._told == self._began
        if waited < SOONEST or not (is_first or further >= SHARE or waited >= LATEST):
            return
        self._told, self._share = now, share
        click.echo(f"{text()}, {share:.0%}, {_clock_of(now - self._began)}", err=True)


def _clock_of(seconds: float) -> str:
    """`0:42`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

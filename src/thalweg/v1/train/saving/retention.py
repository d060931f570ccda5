"""Which checkpoints of a `Saver` are kept, and which are deleted."""

from __future__ import annotations

import time

Dated = tuple[
    str, float
]  # the prefix of a checkpoint, and when it was saved, in seconds since 1970


class Retention:
    """The newest checkpoints, and of the older ones one for each so many hours.

    A checkpoint that is no longer among the newest is kept for good if it was saved after a certain
    time, which then moves on by so many hours. At first it is so many hours after `begin`.

    Args:
        max_to_keep: How many are the newest; 0 for all, which are not listed then.
        hours: How many hours.

    Attributes:
        newest: The newest checkpoints, the oldest of them first.
    """

    def __init__(self, max_to_keep: int, hours: float) -> None:
        self._max_to_keep = max_to_keep
        self._seconds = hours * 3600
        self._next_kept = 0.0
        self.newest: list[Dated] = []

    def begin(self) -> None:
        """Count the hours from now."""
        self._next_kept = time.time() + self._seconds

    def after(self, prefix: str) -> tuple[list[Dated], Dated | None]:
        """What `newest` will be once a checkpoint has been saved, and what it pushes out."""
        if not self._max_to_keep:
            return self.newest, None
        others = [each for each in self.newest if each[0] != prefix]
        newest = [*others, (prefix, time.time())]
        if len(newest) <= self._max_to_keep:
            return newest, None
        return newest[1:], newest[0]

    def keeps(self, old: Dated) -> bool:
        """Whether a checkpoint that was pushed out is kept for good; to be asked once."""
        is_kept = old[1] > self._next_kept
        if is_kept:
            self._next_kept += self._seconds
        return is_kept

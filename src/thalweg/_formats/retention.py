"""Selection of old checkpoints to delete."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

# Path of a checkpoint, and its time in seconds since 1970.
Dated = tuple[str, float]


def _spare_after(saved_time: float, mark: float, span: float) -> float | None:
    """Return `saved_time` if it is at least `span` after `mark`, else None."""
    return saved_time if saved_time - span >= mark else None


class Keeper:
    """List of the newest checkpoints. It selects older checkpoints to delete.

    Savers write the new file, list it as the newest, then delete what `too_old` yields. So a crash
    at any time leaves a checkpoint to continue from.

    Args:
        most: The number of newest checkpoints; None for all.
        span: One older checkpoint per `span` seconds is never deleted; None to delete all.
        mark: The time of the last checkpoint that is never deleted.
        newest: The existing checkpoints, the oldest first.
        spare: `spare(time, mark, span)` returns the new mark, or None to delete the checkpoint.
    """

    def __init__(
        self,
        most: int | None,
        span: float | None,
        mark: float,
        newest: Iterable[Dated] = (),
        spare: Callable[[float, float, float], float | None] = _spare_after,
    ) -> None:
        self.most, self.mark, self.newest = most, mark, list(newest)
        self._span, self._spare = span, spare

    @property
    def paths(self) -> list[str]:
        """Paths of the newest checkpoints, the oldest first."""
        return [path for path, _ in self.newest]

    def after_saving(self, path: str) -> Keeper:
        """Return a new keeper with a checkpoint that has just been saved."""
        newest = [checkpoint for checkpoint in self.newest if checkpoint[0] != path]
        newest.append((path, time.time()))
        return Keeper(self.most, self._span, self.mark, newest, self._spare)

    def too_old(self, most: int | None = None) -> Iterator[str]:
        """Remove surplus checkpoints from the list, the oldest first; yield the paths to delete.

        `most` limits the number of removed checkpoints; None removes all surplus. A checkpoint that
        is never deleted is removed from the list, but not yielded.
        """
        surplus = 0 if self.most is None else max(len(self.newest) - self.most, 0)
        for _ in range(surplus if most is None else min(surplus, most)):
            path, saved_time = self.newest.pop(0)
            mark = None if self._span is None else self._spare(saved_time, self.mark, self._span)
            if mark is None:
                yield path
            else:
                self.mark = mark

"""Selection of the checkpoints of a training that stay, and of those that newer ones replace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

Dated = tuple[str, float]  # the path of a checkpoint, and when it was saved, in seconds since 1970


def _spare_after(saved: float, mark: float, span: float) -> float | None:
    """Spare one that was saved a span after the last one that was; the mark is when that was."""
    return saved if saved - span >= mark else None


class Keeper:
    """The newest checkpoints; what is too old for that is deleted, or spared for good.

    Whoever saves keeps to this order: the new file is on the disk, then it is listed as the newest,
    then what is `too_old` is deleted. So a crash at any time leaves a checkpoint to go on from.

    Args:
        most: How many are the newest; None for all.
        span: One is spared for each so many seconds; None for none.
        mark: The mark before any is spared.
        newest: Those that are there, the oldest of them first.
        spare: Given when one was saved that is too old, the mark and the span. Returns the mark
            that follows if that one is spared, None if it is deleted.
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
        """The paths of the newest, the oldest of them first."""
        return [path for path, _ in self.newest]

    def after_saving(self, path: str) -> Keeper:
        """Return a keeper of the same and of one that has just been saved."""
        newest = [each for each in self.newest if each[0] != path]
        newest.append((path, time.time()))
        return Keeper(self.most, self._span, self.mark, newest, self._spare)

    def too_old(self, most: int | None = None) -> Iterator[str]:
        """Take what is too old from the list, `most` at most; the paths that are to be deleted."""
        surplus = 0 if self.most is None else max(len(self.newest) - self.most, 0)
        for _ in range(surplus if most is None else min(surplus, most)):
            path, saved = self.newest.pop(0)
            mark = None if self._span is None else self._spare(saved, self.mark, self._span)
            if mark is None:
                yield path
            else:
                self.mark = mark

"""When a step that was repeated is planned to be taken in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg._core.commit import TAKEN, add_taken, say_refused
from thalweg._core.plan_cache import PlanCache

Make = Callable[[Any, PlanCache, Any], Any]


class ReplayTrigger:
    """Plans the step that comes next, and takes it.

    Args:
        make: Makes of an optimizer, of what it keeps and of a step what takes that one again in one
            call; None if nothing can.

    Attributes:
        read: Results of users' functions for a step that was not taken after they were called, or
            None.
    """

    read: Any = None
    # Users' functions may be called.
    calls = True
    is_due = True  # and is planned when it is taken

    def __init__(self, make: Make) -> None:
        self._make = make

    def is_over(self, pairs: list[object]) -> bool:
        """Whether it may be a step over pairs."""
        return True

    def take(self, optimizer: Any, kept: PlanCache, given: object) -> bool:
        """Take the step if it can be planned; whether it was taken."""
        made, recorder = self._make(optimizer, kept, given), optimizer._recorder
        kept.replay = made if made is None or recorder is None else recorder.between(made)
        replay = kept.replay
        is_taken = replay is not None and replay.take(optimizer, kept, given)
        self.read = getattr(replay, "read", None)
        return is_taken


def say_what_became(error: Exception, kept: PlanCache, before: int) -> None:
    """Add the note of what has become of a step to what it raised.

    Args:
        error: The exception.
        kept: What the optimizer keeps.
        before: What `count_replayed` told before it.
    """
    if count_replayed(kept) > before:  # and something was raised after it
        add_taken(error)
    else:
        say_refused(error)


def count_replayed(kept: PlanCache) -> int:
    """How many steps were taken in one call by what takes them now."""
    return getattr(kept.replay, "taken", 0)


def note_repeated(kept: PlanCache, make: Make) -> None:
    """A step was repeated: the next one may be taken in one call."""
    kept.replay = ReplayTrigger(make) if kept.count_repeated() else None


class ReplayResult(list[Any]):
    """What has been done of a step: nothing yet, or a sentence, and whether it was taken.

    One in one call is done as soon as it is counted, whatever interrupts what follows.
    """

    _kept: PlanCache | None = None
    _before = 0

    def follow(self, kept: PlanCache) -> None:
        """A step in one call may be taken now."""
        self._kept, self._before = kept, count_replayed(kept)

    def settle(self) -> None:
        """It is over: steps of other threads that follow are no part of it."""
        if not self:
            self._kept = None

    def __bool__(self) -> bool:
        if not len(self) and self._kept is not None and count_replayed(self._kept) > self._before:
            self.extend((f"{TAKEN}.", True))
        return len(self) > 0

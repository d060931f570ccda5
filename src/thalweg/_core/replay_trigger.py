"""Preparation of replays, which repeat steps in one native call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg._base.execution_context import executing_eagerly
from thalweg._core.commit import TAKEN, add_note, add_taken, annotate_not_taken
from thalweg._core.plan_cache import PlanCache

ReplayFactory = Callable[[Any, PlanCache, Any], Any]


class ReplayTrigger:
    """Placeholder in `PlanCache.replay` that builds a replay at the next step, and runs it.

    Args:
        make: `make(optimizer, cache, step arguments)` returns a replay or None.

    Attributes:
        read: Results of user functions called for a step that was not taken after all, or None.
    """

    read: Any = None
    # User functions may be called.
    calls = True
    # The replay is prepared by `take`.
    is_due = True

    def __init__(self, make: ReplayFactory) -> None:
        self._make_replay = make

    def is_over(self, pairs: list[object]) -> bool:
        """Return True if this may be a step over these pairs; here always True."""
        return True

    def take(self, optimizer: Any, cache: PlanCache, step_args: object) -> bool:
        """Build the replay, store it in `cache`, and take the step with it.

        Return True if the step was taken. If no replay is possible, set `cache.replay` to None and
        return False. Set `self.read` to the attribute `read` of the new replay, or to None.

        Args:
            cache: The plans of the optimizer; its `replay` is replaced.
            step_args: The arguments of the step, for `make` and the replay.
        """
        new_replay, recorder = self._make_replay(optimizer, cache, step_args), optimizer._recorder
        cache.replay = (
            new_replay if new_replay is None or recorder is None else recorder.between(new_replay)
        )
        replay = cache.replay
        is_taken = replay is not None and replay.take(optimizer, cache, step_args)
        self.read = getattr(replay, "read", None)
        return is_taken


def progress_of(cache: PlanCache) -> tuple[int, Sequence[str]]:
    """Return (steps taken by the present replay, notes of the last planned step)."""
    return count_replayed(cache), cache.begun


def annotate_outcome(
    error: BaseException, cache: PlanCache, progress: tuple[int, Sequence[str]]
) -> None:
    """Add a note to an error of an eager step: the step was taken or skipped, or changed nothing.

    The caller holds the optimizer's lock from its call of `progress_of` on. Without the lock, steps
    of other threads would count.

    Args:
        error: The exception; changed.
        cache: The cache whose plan or replay may have taken the step.
        progress: The result of `progress_of` before the step.
    """
    if not executing_eagerly():
        return
    count, begun = progress_of(cache)
    if begun and begun is not progress[1]:
        add_note(error, begun)
    elif count > progress[0]:
        add_taken(error)
    else:
        annotate_not_taken(error)


def count_replayed(cache: PlanCache) -> int:
    """Return how many steps the present replay has taken."""
    return getattr(cache.replay, "taken", 0)


def note_repeated(cache: PlanCache, make: ReplayFactory) -> None:
    """Count a step that rebound its plan, and set `cache.replay` for the next step.

    After 1, 2, 4, ... such steps it is a `ReplayTrigger`, which builds a replay by `make`; else
    None.
    """
    cache.replay = ReplayTrigger(make) if cache.count_repeated() else None


class ReplayResult(list[Any]):
    """Result of a step: an empty list until the step is taken, then a note and True.

    A replayed step counts as taken as soon as the replay has counted it, even if it is interrupted.
    """

    _cache: PlanCache | None = None
    _count_before = 0

    def follow(self, cache: PlanCache) -> None:
        """Watch the replays of this cache, one of which may run now."""
        self._cache, self._count_before = cache, count_replayed(cache)

    def settle(self) -> None:
        """Stop watching: later steps belong to other threads."""
        if not self:
            self._cache = None

    def __bool__(self) -> bool:
        if (
            not len(self)
            and self._cache is not None
            and count_replayed(self._cache) > self._count_before
        ):
            self.extend((f"{TAKEN}.", True))
        return len(self) > 0

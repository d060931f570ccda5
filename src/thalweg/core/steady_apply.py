"""A step of `apply_gradients` once more, in one call: what faces have in common of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from operator import is_
from typing import Any

from thalweg.core.outcome import add_taken
from thalweg.core.plan_cache import PlanCache, Planned
from thalweg.core.repeated_pairs import RepeatedPairs
from thalweg.core.steady import is_traced
from thalweg.engines import current
from thalweg.ground.running import executing_eagerly


class SteadyApply(ABC):
    """A step of `apply_gradients` that may be taken again.

    Args:
        optimizer: The optimizer.
        planned: Its last step.
        found: How that was found.
    """

    # Whether users' functions are called in it.
    calls = False

    def __init__(self, optimizer: Any, planned: Planned, found: RepeatedPairs) -> None:
        self._planned, self._found = planned, found
        self._rule = planned.request.rule
        self._current = current()
        self._class: type[Any] = type(optimizer)
        attributes: dict[str, Any] = vars(optimizer)
        self._names = tuple(attributes)
        self._objects: list[Any] = list(attributes.values())
        # Plans hold this step, which has to go with them.
        self._place = self._names.index("_plans")
        del self._objects[self._place]
        self._count = found.snapshot.count

    @property
    def taken(self) -> int:
        """How many steps it has taken."""
        return self._count.value

    def take(self, optimizer: Any, kept: PlanCache, given: Any) -> bool:
        """Take it, if everything is as it was.

        Returns:
            Whether it was taken; if not, nothing has changed.
        """
        before = self._count.value
        try:
            return self._is_of(optimizer, kept) and self._take(optimizer, kept, given)
        except BaseException as error:
            if self._count.value != before:
                add_taken(error)
            else:  # what is kept may be half of one step, half of another
                kept.quick = None
            raise

    def _is_of(self, optimizer: Any, kept: PlanCache) -> bool:
        """Return whether it is the last step of an optimizer that is as it was."""
        attributes: dict[str, Any] = vars(optimizer)
        own: list[Any] = list(attributes.values())
        is_whole = len(own) == len(self._names)
        if is_whole:
            del own[self._place]
        return (
            kept.last is self._planned
            and type(optimizer) is self._class
            and (
                (current() == self._current and is_whole and all(map(is_, own, self._objects)))
                or self._has_equal_attributes(optimizer)
            )
            and not is_traced()
            and executing_eagerly()
        )

    def _has_equal_attributes(self, optimizer: Any) -> bool:
        """Return whether those attributes that decide on a step are as they were."""
        return False

    @abstractmethod
    def _take(self, optimizer: Any, kept: PlanCache, given: Any) -> bool:
        """See `take`."""


def has_own_methods(optimizer: object) -> bool:
    """Whether something that an object has of its own hides a method of its class."""
    own = type(optimizer)
    return any(callable(getattr(own, name, None)) for name in vars(optimizer))

"""A step of `apply_gradients` once more, in one call: what faces have in common of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from thalweg._base.execution_context import executing_eagerly
from thalweg._core.outcome import add_taken
from thalweg._core.plan_cache import PlanCache, Planned
from thalweg._core.repeated_pairs import RepeatedPairs
from thalweg._core.steady import is_traced, look
from thalweg._engines import current


class SteadyApply(ABC):
    """A step of `apply_gradients` that may be taken again.

    Args:
        optimizer: The optimizer.
        planned: Its last step.
        found: How that was found.
        holds_attributes: Whether the look compares the attributes of the optimizer, too.
    """

    # Whether users' functions are called in it.
    calls = False

    def __init__(
        self, optimizer: Any, planned: Planned, found: RepeatedPairs, holds_attributes: bool
    ) -> None:
        self._planned, self._found = planned, found
        self._rule = planned.request.rule
        self._current = current()
        self._class: type[Any] = type(optimizer)
        self._names: tuple[str, ...] = tuple(optimizer.__dict__)
        self._holds_attributes = holds_attributes
        self._attributes = id(optimizer.__dict__)  # no more than that: they hold the plans
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
        return (
            kept.last is self._planned
            and type(optimizer) is self._class
            and (
                (current() == self._current and id(optimizer.__dict__) == self._attributes)
                if self._holds_attributes
                else self._has_equal_attributes(optimizer)
            )
            and not is_traced()
            and executing_eagerly()
        )

    def _has_equal_attributes(self, optimizer: Any) -> bool:
        """Return whether those attributes that decide on a step are as they were."""
        return False

    def _drop(self, optimizer: Any, kept: PlanCache, other: int) -> None:
        """Forget the step, which is not as it was; the next one may be planned anew.

        Args:
            optimizer, kept: As those of `take`.
            other: What is not as it was.
        """
        kept.quick = None
        if other == look.OTHER_DICT and self._has_equal_attributes(optimizer):
            kept.has_steady_attributes = False

    @abstractmethod
    def _take(self, optimizer: Any, kept: PlanCache, given: Any) -> bool:
        """See `take`."""


def has_own_methods(optimizer: object) -> bool:
    """Whether something that an object has of its own hides a method of its class."""
    own = type(optimizer)
    return any(callable(getattr(own, name, None)) for name in vars(optimizer))

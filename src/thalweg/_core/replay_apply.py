"""A step of `apply_gradients` once more, in one call: what faces have in common of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from thalweg._base.execution_context import executing_eagerly
from thalweg._core.commit import add_taken
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.plan_cache import CachedPlan, PlanCache
from thalweg._core.replay import ERRORS, is_traced, replay_kernel
from thalweg._core.replay_pairs import MOST_COMING, ComingStep, ReplayedPairs
from thalweg._engines import current
from thalweg._engines.engine_selection import choices

FAILED = -1  # to make the numbers of a step


class ReplayedApply(ABC):
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
        self, optimizer: Any, planned: CachedPlan, found: ReplayedPairs, holds_attributes: bool
    ) -> None:
        self._planned, self._found = planned, found
        self._rule = planned.request.rule
        self._current, self._choices = current(), choices()
        self._class: type[Any] = type(optimizer)
        self._names: tuple[str, ...] = tuple(optimizer.__dict__)
        self._holds_attributes = holds_attributes
        self._attributes = id(optimizer.__dict__)  # no more than that: they hold the plans
        self._count, self._has_guards = found.snapshot.count, found.snapshot.is_guarded
        # Whether the numbers of steps to come are known and may be set for the call.
        self._is_foreseen = False
        # Those steps whose numbers were computed last: the first of them, and the one after them.
        self._computed_span = (0, 0)
        self._generation = 0  # of what these numbers follow from

    @property
    def taken(self) -> int:
        """Number of steps that it has taken."""
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
                kept.replay = None
            raise

    def _is_of(self, optimizer: Any, kept: PlanCache) -> bool:
        """Return whether it is the last step of an optimizer that is as it was."""
        return (
            kept.last is self._planned
            and type(optimizer) is self._class
            and (
                (
                    (choices() is self._choices or current() == self._current)
                    and id(optimizer.__dict__) == self._attributes
                )
                if self._holds_attributes
                else self._has_equal_attributes(optimizer)
            )
            and (self._has_guards or not is_traced())
            and executing_eagerly()
        )

    @abstractmethod
    def _coming_steps(self, optimizer: Any, first: int) -> Iterator[ComingStep]:
        """Yield the numbers of the steps to come, if these are known ahead.

        Args:
            optimizer: The optimizer.
            first: How many steps were taken before the first of them.
        """

    def _take_coming(self, optimizer: Any, given: list[Any], how: GradientTransforms) -> int:
        """Take a step whose numbers are known ahead: 0; else what is not as it was.

        Between the steps of a training the processor's caches hold other things, and a formula
        takes several times as long as when it runs again and again. So it runs for several steps:
        first for one, then, as long as they come one after the other, for twice as many each time.

        Args:
            optimizer, given: As those of `take`.
            how: What happens to the gradients.
        """
        count_before = self._count.value
        try:
            mismatch = self._found.take_coming(given, how)
            is_new = mismatch == replay_kernel.NOT_TABLED
            if is_new and self._compute_coming(optimizer, count_before):
                mismatch = self._found.take_coming(given, how)
            return mismatch
        except ERRORS:
            if self._count.value != count_before:  # a signal's function raised it after the step
                raise
            return FAILED  # the careful step raises the error

    def _compute_coming(self, optimizer: Any, count_before: int) -> bool:
        """Compute the numbers of steps to come; return False if not even one was set.

        Args:
            optimizer: The optimizer.
            count_before: How many steps were taken before the first of them.
        """
        generation, (first, end) = self._generation, self._computed_span
        limit = max(1, min(2 * (end - first), MOST_COMING)) if count_before == end else 1
        steps: list[ComingStep] = []
        # Errors and warnings are those of the step itself, when it comes.
        with suppress(*ERRORS), np.errstate(over="raise", invalid="raise", divide="raise"):
            for step in islice(self._coming_steps(optimizer, count_before), limit):
                steps.append(step)
        if generation != self._generation:  # a signal's function took a step that read anew
            return False
        if not self._found.set_coming(count_before, steps):
            self._is_foreseen = self._is_foreseen and not steps
            return False
        if generation != self._generation:
            self._forget_coming()
            return False
        self._computed_span = count_before, count_before + len(steps)
        return True

    def _forget_coming(self) -> None:
        """Have the numbers of coming steps computed anew, also those that are being computed."""
        self._generation += 1
        self._computed_span = (0, 0)
        self._found.set_coming(0, ())

    def _has_equal_attributes(self, optimizer: Any) -> bool:
        """Return whether those attributes that decide on a step are as they were."""
        return False

    def _drop(self, optimizer: Any, kept: PlanCache, mismatch: int) -> None:
        """Forget the step, which is not as it was; the next one may be planned anew.

        Args:
            optimizer, kept: As those of `take`.
            mismatch: What is not as it was.
        """
        if mismatch == replay_kernel.TRACED:  # and the next step may be as this one was
            return
        kept.replay = None
        if mismatch == replay_kernel.OTHER_DICT and self._has_equal_attributes(optimizer):
            kept.has_constant_attributes = False

    @abstractmethod
    def _take(self, optimizer: Any, kept: PlanCache, given: Any) -> bool:
        """See `take`."""


def has_own_methods(optimizer: object) -> bool:
    """Whether something that an object has of its own hides a method of its class."""
    own = type(optimizer)
    return any(callable(getattr(own, name, None)) for name in vars(optimizer))

"""Replay of `apply_gradients`, common to all front ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any
from weakref import ref

import numpy as np

from thalweg._base.execution_context import executing_eagerly
from thalweg._core.commit import add_taken, annotate_not_taken
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.plan_cache import CachedPlan, PlanCache
from thalweg._core.reentrance import Stepping
from thalweg._core.replay import ERRORS, is_traced, replay_block
from thalweg._core.replay_pairs import FAILED as FAILED
from thalweg._core.replay_pairs import MOST_COMING, ComingStep, ReplayedPairs
from thalweg._engines import current
from thalweg._engines.engine_selection import choices


class ReplayedApply(ABC):
    """Replay of the last step of `apply_gradients`, while inputs and optimizer are unchanged.

    Args:
        cached_plan: The plan of the last step.
        native_step: The native call that repeats it.
        guards_attributes: True if its guards compare the attributes of the optimizer.

    Attributes:
        calls: True if the step calls functions of the user.
    """

    calls = False

    def __init__(
        self,
        optimizer: Any,
        cached_plan: CachedPlan,
        native_step: ReplayedPairs,
        guards_attributes: bool,
    ) -> None:
        self._cached_plan, self._native_step = cached_plan, native_step
        self._rule = cached_plan.request.rule
        self._current, self._choices = current(), choices()
        self._class: type[Any] = type(optimizer)
        self._names: tuple[str, ...] = tuple(optimizer.__dict__)
        self._guards_attributes = guards_attributes
        # Only the id: the attributes refer to the plans, and a reference would be a cycle.
        self._attributes = id(optimizer.__dict__)
        self._count = native_step.guards.replay_counter
        # Without the GIL, functions of torch are called before guards are checked.
        is_locked = not native_step.guards.releases_lock
        self._has_guards = native_step.guards.detects_tracing and is_locked
        # True if the scalars of coming steps may be computed ahead.
        self._is_foreseen = False
        # Steps with computed scalars: the first one, and the one after the last.
        self._computed_span = (0, 0)
        # Changes with the hyperparameters from which the scalars are computed.
        self._generation = 0

    @property
    def taken(self) -> int:
        """Number of steps that the replay has taken."""
        return self._count.value

    def take(self, optimizer: Any, cache: PlanCache, arguments: Any) -> bool:
        """Take the step if all guards hold; return True if it was taken.

        If a guard fails, no tensor is changed. If an exception is raised before the step was taken,
        `cache.replay` is set to None.

        Args:
            arguments: The arguments of the step, passed to `_take` of the front end.
        """
        count_before = self._count.value
        try:
            if not self._fits(optimizer, cache):
                return False
            if not self._native_step.guards.releases_lock:
                return self._take(optimizer, cache, arguments)
            return self._take_marked(optimizer, cache, arguments)
        except BaseException as error:
            if self._count.value != count_before:
                add_taken(error)
            else:
                # The scalars may be in part those of another step.
                cache.replay = None
                annotate_not_taken(error)
            raise

    def _take_marked(self, optimizer: Any, cache: PlanCache, arguments: Any) -> bool:
        """Take the step, and mark it as running, for a native call without the GIL.

        A finalizer or signal handler that starts another step gets an error. Return False, with
        nothing changed, inside another step of the optimizer.
        """
        caches = optimizer._plans
        if caches.stepping is not None:
            return False
        stepping = Stepping()
        try:
            caches.stepping = ref(stepping)
            return self._take(optimizer, cache, arguments)
        finally:
            caches.stepping = None

    def _fits(self, optimizer: Any, cache: PlanCache) -> bool:
        """Return True if the optimizer and the engine are unchanged since the recorded step.

        The recorded plan must be the last in `cache`, and no graph or trace of torch may be active.
        """
        return (
            cache.last is self._cached_plan
            and type(optimizer) is self._class
            and (
                (
                    (choices() is self._choices or current() == self._current)
                    and id(optimizer.__dict__) == self._attributes
                )
                if self._guards_attributes
                else self._has_equal_attributes(optimizer)
            )
            and (self._has_guards or not is_traced())
            and executing_eagerly()
        )

    @abstractmethod
    def _coming_steps(self, optimizer: Any, first: int) -> Iterator[ComingStep]:
        """Yield, without end, a `ComingStep` for each step after `first` replayed steps.

        Yield nothing if the scalars of these steps cannot be computed ahead.
        """

    def _take_coming(self, optimizer: Any, pairs: list[Any], transforms: GradientTransforms) -> int:
        """Take a step with scalars from the table of scalars that were computed ahead.

        If the table lacks the step, compute scalars of this and several later steps first. Return 0
        if the step was taken, else FAILED or the constant of a failed guard.
        """
        # Between steps, other code evicts the formula from the processor's caches, so computing the
        # scalars of many steps takes little longer than those of one.
        count_before = self._count.value
        try:
            mismatch = self._native_step.take_coming(pairs, transforms)
            is_new = mismatch == replay_block.NOT_TABLED
            if is_new and self._compute_coming(optimizer, count_before):
                mismatch = self._native_step.take_coming(pairs, transforms)
            return mismatch
        except ERRORS:
            # A signal handler raised the error after the step.
            if self._count.value != count_before:
                raise
            # The planned step that follows raises the error again.
            return FAILED

    def _compute_coming(self, optimizer: Any, count_before: int) -> bool:
        """Compute the scalars of the next steps, and store them in the table of `take_coming`.

        Compute twice as many steps as before, up to `MOST_COMING`, if all of them were taken; if
        not, compute one. Return False if no scalars were stored. Reasons are an error in a formula,
        a computation that native code lacks, or a step of a signal handler.

        Args:
            count_before: The number of steps that this replay has taken.
        """
        generation, (first, end) = self._generation, self._computed_span
        limit = max(1, min(2 * (end - first), MOST_COMING)) if count_before == end else 1
        steps: list[ComingStep] = []
        # Errors and warnings are left to the step itself, which computes its scalars again.
        with suppress(*ERRORS), np.errstate(over="raise", invalid="raise", divide="raise"):
            for step in islice(self._coming_steps(optimizer, count_before), limit):
                steps.append(step)
        # A signal handler took a step that read the hyperparameters again.
        if generation != self._generation:
            return False
        if not self._native_step.set_coming(count_before, steps):
            self._is_foreseen = self._is_foreseen and not steps
            return False
        # The handler's step may also have come while the table was written.
        if generation != self._generation:
            self._forget_coming()
            return False
        self._computed_span = count_before, count_before + len(steps)
        return True

    def _forget_coming(self) -> None:
        """Discard the scalars of coming steps, also those that are being computed."""
        self._generation += 1
        self._computed_span = (0, 0)
        self._native_step.set_coming(0, ())

    def _has_equal_attributes(self, optimizer: Any) -> bool:
        """Return True if the attributes on which a step depends have their old values."""
        return False

    def _drop(self, optimizer: Any, cache: PlanCache, mismatch: int) -> None:
        """Set `cache.replay` to None, so that the next step is planned.

        Do nothing if the step failed only because torch traces operations (`TRACING`). If the
        optimizer has a new attribute dict (`OTHER_DICT`) with equal values, set
        `cache.has_constant_attributes` to False, too.

        Args:
            mismatch: The constant of `replay_block` for the guard that failed.
        """
        # Tracing may end before the next step, which then can be replayed.
        if mismatch == replay_block.TRACING:
            return
        cache.replay = None
        if mismatch == replay_block.OTHER_DICT and self._has_equal_attributes(optimizer):
            cache.has_constant_attributes = False

    @abstractmethod
    def _take(self, optimizer: Any, cache: PlanCache, arguments: Any) -> bool:
        """Take the step of the front end; see `take`."""


def has_own_methods(optimizer: object) -> bool:
    """Return True if an attribute of the instance replaces a method of its class."""
    optimizer_class = type(optimizer)
    return any(callable(getattr(optimizer_class, name, None)) for name in vars(optimizer))

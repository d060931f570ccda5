"""What an optimizer keeps from one step to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary, ref

from torch import Tensor

from thalweg._base.context_managers import ContextSetting
from thalweg._base.execution_context import current_session, thread
from thalweg._core.reentrance import Stepping, one_step_at_a_time
from thalweg._engines import Dispatcher
from thalweg._engines.protocol import StepPlan, StepRequest

_SPARE = 16  # variables of earlier steps, updated on their own, whose plans may be kept


class CachedPlan(NamedTuple):
    """A step that is ready.

    Attributes:
        request: What is asked of the engines.
        ready: Their answer.
        scalar_slots: For each variable its slots of shape ().
        narrow: Whether 16-bit gradients of float32 variables were allowed.
        shaped_slots: For each variable its slots with a shape of their own.
    """

    request: StepRequest
    ready: StepPlan
    scalar_slots: Sequence[Sequence[Tensor]]
    narrow: bool
    shaped_slots: Sequence[Sequence[Tensor]] = ()


class PlanCache:
    """What is kept from one step to the next."""

    longest_wait: ClassVar[int] = 1024  # repeated steps, until one is planned again in one call

    def __init__(self) -> None:
        self.gate = Dispatcher()
        self.last: CachedPlan | None = None  # the step that may be repeated
        self.replay: Any = None  # what takes it in one call
        # Whether attributes of the optimizer stayed the same objects between such steps.
        self.has_constant_attributes = True
        self._waits, self._patience = 0, 1  # repeated steps before the next one of those
        self._alone: dict[int, PlanCache] = {}

    def count_repeated(self) -> bool:
        """A step was repeated; whether it is to be planned: not at each what changes at each."""
        self._waits += 1
        if self._waits < self._patience:
            return False
        self._waits, self._patience = 0, min(2 * self._patience, self.longest_wait)
        return True

    def alone(self, var: Tensor) -> PlanCache:
        """What is kept for steps over this variable only."""
        return self._alone.setdefault(id(var), PlanCache())

    def forget_others(self, variables: Sequence[Tensor]) -> None:
        """Let go of variables that were updated on their own in earlier steps, if they are many."""
        if len(self._alone) > 2 * len(variables) + _SPARE:
            own = {id(var) for var in variables}
            self._alone = {key: each for key, each in self._alone.items() if key in own}


class PlanCaches:
    """What an optimizer keeps: for eager mode, and for each session.

    Plans hold addresses, so a copy begins anew.
    """

    def __init__(self) -> None:
        # The step that a thread is in, unless it is taken in one call; see `reentrance`.
        self.stepping: ref[Stepping] | None = None
        self._eager = PlanCache()
        self._sessions: WeakKeyDictionary[object, PlanCache] = WeakKeyDictionary()

    def now(self) -> PlanCache:
        """What is kept for the session that runs in this thread, or for eager mode."""
        if not thread.frames:
            return self._eager
        return self._sessions.setdefault(current_session(), PlanCache())

    def one_step(self, title: str) -> ContextSetting:
        """Return the block of a step that is planned; raises if it begins in another one.

        Args:
            title: The name of the optimizer.
        """
        return one_step_at_a_time(self, title, [self._eager, *self._sessions.values()])

    def __deepcopy__(self, memo: dict[int, Any]) -> PlanCaches:
        return PlanCaches()

    def __reduce__(self) -> tuple[Any, ...]:
        return PlanCaches, ()

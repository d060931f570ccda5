"""Cache of step plans."""

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

# Caches of single variables that are kept although a step does not use them.
_SPARE_PLANS = 16


class CachedPlan(NamedTuple):
    """Request to the engines for a step, and the engines' plan.

    Attributes:
        ready: The plan of the engines.
        scalar_slots: For each variable its slots of shape ().
        narrow: True if 16-bit gradients of float32 variables were allowed.
        shaped_slots: For each variable its slots whose shape differs from the variable's.
    """

    request: StepRequest
    ready: StepPlan
    scalar_slots: Sequence[Sequence[Tensor]]
    narrow: bool
    shaped_slots: Sequence[Sequence[Tensor]] = ()


class PlanCache:
    """Plans of an optimizer, kept between steps.

    Attributes:
        last: The plan that the next step may reuse with new gradients, or None.
        replay: Object that runs the next step in one native call, or prepares it; None if not
            possible.
        has_constant_attributes: False once an attribute of the optimizer was another object.
        begun: `StepAdapter.begun` of the last planned step, or ().
    """

    # The most rebinds before a replay is prepared again.
    longest_wait: ClassVar[int] = 1024

    def __init__(self) -> None:
        self.gate = Dispatcher()
        self.last: CachedPlan | None = None
        self.replay: Any = None
        self.has_constant_attributes = True
        self.begun: Sequence[str] = ()
        self._rebinds, self._rebinds_before_replay = 0, 1
        self._by_variable: dict[int, PlanCache] = {}

    def count_repeated(self) -> bool:
        """Count a step that reused its plan; return True if the next step should prepare a replay.

        A replay takes steps in one native call. The first call returns True. The numbers of calls
        until the next True are 2, 4, 8, ..., at most `longest_wait`.
        """
        self._rebinds += 1
        if self._rebinds < self._rebinds_before_replay:
            return False
        # Preparing a replay is slow, and is wasted if guards fail at the next step again.
        self._rebinds, self._rebinds_before_replay = (
            0,
            min(2 * self._rebinds_before_replay, self.longest_wait),
        )
        return True

    def alone(self, var: Tensor) -> PlanCache:
        """Return the cache of steps over this variable alone; create it at the first call."""
        return self._by_variable.setdefault(id(var), PlanCache())

    def forget_others(self, variables: Sequence[Tensor]) -> None:
        """Drop the caches of variables that are not in `variables`, if there are many caches.

        Up to 2 * len(variables) + 16 caches are kept.
        """
        if len(self._by_variable) > 2 * len(variables) + _SPARE_PLANS:
            var_ids = {id(var) for var in variables}
            self._by_variable = {
                key: cache for key, cache in self._by_variable.items() if key in var_ids
            }


class PlanCaches:
    """Plan caches of an optimizer, for eager mode and for each session.

    A copy is empty, because plans hold addresses.
    """

    def __init__(self) -> None:
        # The step of the present thread, unless it is replayed; see `reentrance`.
        self.stepping: ref[Stepping] | None = None
        self._eager = PlanCache()
        self._sessions: WeakKeyDictionary[object, PlanCache] = WeakKeyDictionary()

    def now(self) -> PlanCache:
        """Return the plan cache of the session that runs in this thread, else of eager mode."""
        if not thread.frames:
            return self._eager
        return self._sessions.setdefault(current_session(), PlanCache())

    def one_step(self, name: str) -> ContextSetting:
        """Return a context manager for a planned step; entering it inside another step raises.

        Call it in the `with` statement itself, as `one_step_at_a_time`.

        Args:
            name: The name of the optimizer.
        """
        return one_step_at_a_time(self, name, [self._eager, *self._sessions.values()])

    def __reduce__(self) -> tuple[Any, ...]:
        return PlanCaches, ()

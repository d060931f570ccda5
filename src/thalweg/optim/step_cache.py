"""Caches and counters of torch-style optimizers outside their state."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from torch import Tensor

from thalweg._base.locks import Guard
from thalweg._core.flat_buffers import AddedParams
from thalweg._core.reentrance import Stepping
from thalweg.formula import Rule
from thalweg.optim.custom_op import Operands
from thalweg.optim.param_scalars import Blocks
from thalweg.optim.param_state import ParamState
from thalweg.optim.step_adapter import ParamGroupAdapter
from thalweg.optim.step_options import GradientReport, LastStep

if TYPE_CHECKING:
    from thalweg.distribute.sharding.matrix_group import MatrixProcessGroup
    from thalweg.optim.diagnostics.measuring import Diagnosing, StepWatch
    from thalweg.optim.flat_gradients import FlatGradients
    from thalweg.optim.replay import ReplayedStep


class SetChanges:
    """Counter of steps with absent gradients: decides when to plan a replay for such steps.

    Attributes:
        needs_plan: True if the next step should be planned for absent gradients.
    """

    # The largest number of changes to wait for before the next plan.
    _longest_wait: ClassVar[int] = 1024

    def __init__(self) -> None:
        self.needs_plan = False
        # True if gradients were missing in the last step.
        self._lacked = False
        self._changes, self._patience = 0, 2

    def note_planned(self, gradients: int, trainable: int) -> None:
        """Count this step if a gradient is absent now or was absent in the step before.

        If the count reaches a limit, set `needs_plan` and reset the count. The limit then doubles
        up to 1,024.

        Args:
            gradients: The number of parameters with a gradient in the step.
            trainable: The number of parameters that need a gradient.
        """
        has_absent = gradients < trainable
        self._changes += has_absent or self._lacked
        self._lacked = has_absent
        if self._changes >= self._patience:
            self.needs_plan = True
            # A plan that is soon replaced costs more than it saves: wait longer for the next one.
            self._changes, self._patience = 0, min(2 * self._patience, self._longest_wait)

    def note_end(self, steps: int) -> None:
        """Reset the limit of the count if the ended replay took at least that many steps."""
        # A replay that lasted so long has paid for its plan, so that the next one may come early.
        if steps >= self._patience:
            self._patience = 2


class StepCache:
    """Caches and counters of an optimizer outside its state; a copied optimizer has new ones."""

    # Plans of steps in which other parameters had gradients; see `absent_gradients.select_set`.
    sets: dict[tuple[bool, ...], Any] | None = None
    gradient_set: tuple[bool, ...] = ()

    def __init__(self, optimizer: object) -> None:
        self.lock = Guard(self)  # held by a step
        self.operands = Operands(optimizer)
        self.blocks = Blocks()
        self.added_params = AddedParams()
        self.is_constructed = False  # True after the constructor
        self.parts: dict[Rule, ParamState] = {}
        self.last_step: LastStep | None = None  # without the norm and factor in `report`
        self.report = GradientReport()
        self.count = 0  # steps counted on the host
        self.counter: Tensor | None = None  # further steps, counted on a device
        # True if the present step, or the last one, is applied; None if the host decides.
        self.apply_flag: Tensor | None = None
        self.last_apply_flag: Tensor | None = None
        self.holds_averages = False  # True in a block of `swapped()`
        # The step that a thread is in, unless it is taken in one call; see `reentrance`.
        self.stepping: ref[Stepping] | None = None
        self.sums: dict[int, Tensor] | None = None  # accumulated gradients, by `id` of parameters
        # Handles of hooks, indices of groups and states of single parameters, by the same key.
        self.heard: dict[int, Any] = {}
        self.places: dict[int, int] = {}
        self.single_param_states: dict[int, dict[Rule, ParamState]] = {}
        # Parameters, and gradients whose transfers have started in a backward pass.
        self.fetching: deque[tuple[Tensor, Tensor, Any]] = deque()
        self.has_applied_grads = False  # True if a backward pass applied gradients since the step
        self.progress: Sequence[str] = ()  # notes about the present step, for its errors
        self.is_folded = False  # True if the present step added its gradients to the sums
        self.flat: FlatGradients | None = None
        self.kinds_of_torch: Any = None  # unusual kinds of tensors in the last step of torch
        # The part that updated all groups in the last step, with the group of each parameter.
        self.rebind_target: tuple[ParamState, list[int]] | None = None
        self.replay: ReplayedStep | None = None
        self.due_adapters: Sequence[ParamGroupAdapter] = ()  # the next replay is planned from these
        self.changes = SetChanges()
        self.diagnosing: Diagnosing | None = None
        self.watch: StepWatch | None = None  # set in a measured step
        # Ranks that exchange messages in the present step, and in the last such step.
        self.team: MatrixProcessGroup | None = None
        self.known_team: MatrixProcessGroup | None = None

    @property
    def total(self) -> int:
        """Number of steps taken, including steps of replays."""
        return self.count + (0 if self.replay is None else self.replay.taken - self.replay.reported)

    def settle(self) -> None:
        """Add the steps that were replayed since the last call to `count`; update the reports."""
        with self.lock:
            if self.replay is not None and self.replay.reported < self.replay.taken:
                self.last_step, self.last_apply_flag = LastStep(True, "", self.total), None
                self.report, self.has_applied_grads = self.replay.seen, False
                # The last assignment, so that an interrupted call is repeated.
                self.count, self.replay.reported = self.total, self.replay.taken

    def forget_replay(self) -> None:
        """Drop the replayed step, so that the next step runs all checks."""
        self.settle()
        if self.replay is not None:
            self.changes.note_end(self.replay.taken)
        self.replay, self.due_adapters = None, ()

    def _is_replayed(self, adapters: Sequence[ParamGroupAdapter]) -> bool:
        """Return True if `replay` repeats exactly the plans that `adapters` ran last."""
        plans = [] if self.replay is None else [sub_step.plan for sub_step in self.replay.sub_steps]
        current_plans = [adapter.part.plans.last for adapter in adapters]
        return len(plans) == len(current_plans) and all(map(is_, plans, current_plans))

    def note_repeated(self, *adapters: ParamGroupAdapter) -> None:
        """Record that a step without replay ran the same plans as the step before; drop `replay`.

        If the plans have run often enough, detach the adapters and store them in `due_adapters`:
        the next step then plans a replay. Change nothing if diagnostics measured the step and
        `replay` repeats the plans of this step.

        Args:
            adapters: The adapter of each rule's update in this step.
        """
        if self.watch is not None and self._is_replayed(adapters):
            # The measured step was an exception; the next one can be replayed.
            return
        self.forget_replay()
        if adapters[0].part.plans.count_repeated():
            for adapter in adapters:
                adapter.detach()
            self.due_adapters = adapters

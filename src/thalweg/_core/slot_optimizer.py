"""Common base class of the optimizers of Keras and of TensorFlow 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from thalweg._core.gradient_transforms import GradientTransforms, StepJudge
from thalweg._core.graph_update import apply_as_one_update
from thalweg._core.plan_cache import PlanCaches
from thalweg._core.trackable import TrackableSlots
from thalweg._engines import Selection, check_name, current
from thalweg._engines.engine_selection import EngineName


class SlotOptimizer(TrackableSlots):
    """Base class of the optimizers of Keras and TensorFlow 1: slots and a selectable engine."""

    _NOT_COPIED: ClassVar[tuple[str, ...]] = (*TrackableSlots._NOT_COPIED, "_recorder", "_spikes")
    _engine: EngineName | None = None
    # Set by `thalweg.diagnostics` to record steps, and to leave some out.
    _recorder: Any = None
    _spikes: StepJudge | None = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if SlotOptimizer not in cls.__bases__:
            apply_as_one_update(cls, SlotOptimizer)

    @property
    def engine(self) -> EngineName | None:
        """The engine of this optimizer; None follows `thalweg.engine(...)`."""
        return self._engine

    @engine.setter
    def engine(self, name: EngineName | None) -> None:
        self._engine = None if name is None else check_name(name)

    def _selection(self) -> Selection:
        selection = current()
        return selection if self._engine is None else selection._replace(name=self._engine)

    def _judge_by(self, judge: StepJudge) -> None:
        """Have steps be judged from now on, and forget replays that do not ask the judge."""
        vars(self).update(_spikes=judge, _plans=PlanCaches())

    def _judged(self, transforms: GradientTransforms) -> GradientTransforms:
        """Return the transforms of a step with the judge of steps, if there is one."""
        return transforms if self._spikes is None else replace(transforms, judge=self._spikes)

    def _innermost(self) -> SlotOptimizer:
        """Return the optimizer that takes the steps: a wrapper returns the wrapped one."""
        return self

    def _one_by_one(self) -> bool:
        """Return True if a subclass's hook updates each variable separately."""
        return True

    def _steps_taken(self) -> int | None:
        """Return the number of applied steps; None if it is not counted, or in a session."""
        return None

    def _scatters(self) -> bool:
        """Return True if TensorFlow uses scatter kernels; they determine errors of bad indices."""
        return True

"""What the optimizers of Keras and of TensorFlow 1 are alike in, but for their steps."""

from __future__ import annotations

from typing import Any, ClassVar

from thalweg._core.graph_update import apply_as_one_update
from thalweg._core.trackable import TrackableSlots
from thalweg._engines import Selection, check_name, current
from thalweg._engines.engine_selection import EngineName


class SlotOptimizer(TrackableSlots):
    """The part of an optimizer that chooses its engine."""

    _NOT_COPIED: ClassVar[tuple[str, ...]] = (*TrackableSlots._NOT_COPIED, "_recorder")
    _engine: EngineName | None = None
    _recorder: Any = None  # what records some steps, once `thalweg.diagnostics` has attached it

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

    def _innermost(self) -> SlotOptimizer:
        """The optimizer that takes the steps of this one."""
        return self

    def _one_by_one(self) -> bool:
        """Whether a subclass's hook updates each variable."""
        return True

    def _steps_taken(self) -> int | None:
        """How many steps were taken; None where it does not count them, or a session does."""
        return None

    def _scatters(self) -> bool:
        """Whether TensorFlow would use scatter kernels, which word a bad index their own way."""
        return True

"""What the optimizers of Keras and of TensorFlow 1 are alike in, but for their steps."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from thalweg.core.one_update import apply_as_one_update
from thalweg.core.plan_cache import Plans
from thalweg.core.trackable import TrackableSlots
from thalweg.engines import Selection, check_name, current
from thalweg.engines.selection import EngineName
from thalweg.ground.locks import Guard


class SlotOptimizer(TrackableSlots):
    """The part of an optimizer that chooses its engine, and knows what of it a copy has."""

    _NOT_COPIED: ClassVar[tuple[str, ...]] = ("_lock", "_plans")
    _engine: EngineName | None = None
    _lock: Guard

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self._set_up()
        return self

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if SlotOptimizer not in cls.__bases__:
            apply_as_one_update(cls, SlotOptimizer)

    def _set_up(self) -> None:
        """Make what is not copied."""
        # Steps of several threads, and looks at the state, come one after the other.
        vars(self).update(_lock=Guard(self, type(self)._forget_step), _plans=Plans())

    def _locked(self) -> Guard:
        return self._lock

    def _forget_step(self) -> None:
        """Drop what only the step of a thread needed that is no more."""

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in self._NOT_COPIED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set_up()  # the oldest protocols of pickle call no `__new__`
        vars(self).update(state)
        self._maybe_initialize_trackable()

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

    def _scatters(self) -> bool:
        """Whether TensorFlow would use scatter kernels, which word a bad index their own way."""
        return True

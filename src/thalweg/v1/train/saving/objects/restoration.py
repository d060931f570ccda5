"""`Restoration`: one restore, whose values reach objects now and later."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thalweg._base.context_managers import ContextSetting
from thalweg._base.locks import Lock
from thalweg._core.trackable import TrackableSlots
from thalweg.v1.train.saving.objects.members import (
    held_by,
    hold_steps,
    is_variable,
    members_of,
    optimizers_in,
)
from thalweg.v1.train.saving.objects.values import ObjectValues
from thalweg.v1.train.saving.objects.walk import Walk


class Restoration(ObjectValues):
    """Restore of an object checkpoint; see `ObjectValues`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lock = Lock()
        self._walk: Walk | None = None

    def bind(self, node: int, owner: object) -> None:
        """Restore the value of a position into an object, and so on for its children and slots.

        All values are set or none. A value whose object does not exist yet is stored in its parent,
        and restored when the object is created.

        Args:
            node: The position in the file's list of objects.
            owner: The object.

        Raises:
            CheckpointMismatchError: Shapes or dtypes differ. Nothing has changed.
        """
        if self._lock.is_mine() and self._walk is not None:  # a hook of a subclass calls
            self._walk.pending.append((node, owner))
            return
        with self._hold_steps(owner), self._lock:
            self._walk = Walk(self, lambda place: Position(self, place))
            try:
                self._walk.run(node, owner)
            finally:
                self._walk = None

    def _hold_steps(self, owner: object) -> ContextSetting:
        """Return a context manager that locks all optimizers whose state may change."""
        # A new variable is being made by an optimizer, which holds its lock if it needs to.
        if is_variable(held_by(owner, self.graph)):
            return hold_steps([])
        optimizers = optimizers_in(members_of(owner, self.graph))
        optimizers += [x for x in self.objects.values() if isinstance(x, TrackableSlots)]
        return hold_steps(sorted(optimizers, key=id))

    def __getstate__(self) -> dict[str, Any]:
        # A copy of an optimizer waits for values by itself, and has found no objects.
        fresh = {"unused": dict(self.unused), "objects": {}, "assignments": {}}
        return {**vars(self), **fresh, "_lock": None, "_walk": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = Lock()

    def __deepcopy__(self, memo: dict[int, object]) -> Restoration:
        duplicate = object.__new__(Restoration)
        duplicate.__setstate__(self.__getstate__())
        memo[id(self)] = duplicate
        return duplicate


class Position:
    """Position of an object in a checkpoint whose value is not restored yet.

    Args:
        restoration: The restore.
        node: The position in the file's list of objects.
    """

    def __init__(self, restoration: Restoration, node: int) -> None:
        self._restoration, self._node = restoration, node

    @property
    def restore_uid(self) -> int:
        """The number of the restore; a later one has a higher number."""
        return self._restoration.number

    @property
    def graph(self) -> Any:
        """The graph that was being built when it was restored; None in eager mode."""
        return self._restoration.graph

    def is_simple_variable(self) -> bool:
        """Return True if the position is a variable without children whose value is not restored
        yet.
        """
        restoration, node = self._restoration, self._node
        return node in restoration.unused and not restoration.nodes[node].children

    def value(self) -> Tensor:
        """Return the value of the file; the caller must not write to it."""
        return self._restoration.unused[self._node]

    def restore(self, trackable: object) -> None:
        """Restore the value of this position, its children and its slots into an object.

        Raises:
            CheckpointMismatchError: Shapes or dtypes differ. Nothing has changed.
        """
        self._restoration.bind(self._node, trackable)

    def release(self) -> None:
        """Drop the value, because the object got another one."""
        self._restoration.settle({self._node: None}, ())

    def __repr__(self) -> str:
        return f"<{self._restoration.name(self._node)!r} of {self._restoration.source}>"

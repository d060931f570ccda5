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
        """Give an object what the file has for a position, its children and their slots.

        All values are set, or none. What has no object yet waits with its parent.

        Args:
            node: The position.
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
        """Return the block that holds back the steps of all optimizers whose state may change."""
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
    """A place in a checkpoint: what waits there for an object, its children and their slots.

    Args:
        restoration: The restore.
        node: The place.
    """

    def __init__(self, restoration: Restoration, node: int) -> None:
        self._restoration = restoration
        self._node = node

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
        """Return the value; not to be written to."""
        return self._restoration.unused[self._node]

    def restore(self, trackable: object) -> None:
        """Give an object what the checkpoint has for it.

        Raises:
            CheckpointMismatchError: Shapes or dtypes differ. Nothing has changed.
        """
        self._restoration.bind(self._node, trackable)

    def release(self) -> None:
        """Wait no longer: another value was chosen."""
        self._restoration.settle({self._node: None}, ())

    def __repr__(self) -> str:
        return f"<{self._restoration.name(self._node)!r} of {self._restoration.source}>"

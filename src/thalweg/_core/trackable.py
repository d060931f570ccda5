"""Deferred restoration of checkpoint values into objects that do not exist yet.

A checkpoint of objects is a graph: an object has children by name, some of which are variables, and
an optimizer has slots of variables. A value that is restored before its object exists waits in a
*position*: a child's in its parent, by name, and a slot's in the optimizer, by variable and name.
The code that creates the object looks the value up. The methods have the names of TensorFlow's
`Trackable`; subclasses may override or call them.

A position has a number, `restore_uid`, which is higher in a later restore, and the graph that was
built at the restore as `graph`, None in eager mode. `is_simple_variable()` returns True if it holds
a value and no children, `value()` returns the value, `restore(trackable)` restores an object, or
raises CheckpointMismatchError, and `release()` drops the value, because another one was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor

from thalweg._base.execution_context import (
    current_session,
    executing_eagerly,
    handle_of,
    is_symbolic,
)
from thalweg._base.locks import Guard
from thalweg._core.plan_cache import PlanCaches
from thalweg._core.slots import SlotStore
from thalweg._core.state import Entry, mismatch
from thalweg.errors import InvalidArgumentError
from thalweg.variable import to_tensor


class TrackableReference(NamedTuple):
    """A child and its name."""

    name: str
    ref: Any


class Trackable:
    """Object with named children, which checkpoints save.

    Attributes:
        PER_GRAPH: True if eager mode and each graph have separate children under equal names.
    """

    PER_GRAPH: ClassVar[bool] = False

    _tracked: dict[str, Any]
    _deferred_dependencies: dict[str, list[Any]]

    def _maybe_initialize_trackable(self) -> None:
        """Create the attributes that the other methods need, if they are missing."""
        attributes = vars(self)
        attributes.setdefault("_tracked", {})
        attributes.setdefault("_deferred_dependencies", {})

    def _checkpointed(self) -> object:
        """Return the object whose state is saved in place of this object's state."""
        return self

    def _track_trackable(self, trackable: object, name: str, overwrite: bool = False) -> Any:
        """Add an object as a child and return it. A value that waits for `name` is restored first.

        Args:
            trackable: A variable, module, optimizer, or another object that has children.
            name: The child's name.
            overwrite: Replace another child of this name instead of raising an error.

        Raises:
            InvalidArgumentError: There is another child of this name.
        """
        self._maybe_initialize_trackable()
        tracked = self._lookup_dependency(name)
        if tracked is not None and tracked is not trackable and not overwrite:
            raise InvalidArgumentError(
                f"{type(self).__name__} tracks another object as {name!r} already. Give this one"
                " another name, or overwrite=True."
            )
        if tracked is not trackable:
            self._handle_deferred_dependencies(name=name, trackable=trackable)
        self._tracked[name] = trackable
        return trackable

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: object
    ) -> dict[str, object]:
        """Return {name: child}; children per graph are those of the default graph.

        Args:
            save_type: Ignored; accepted for compatibility with TensorFlow.
            **kwargs: Ignored.
        """
        self._maybe_initialize_trackable()
        return {**self._own_children(), **self._tracked}

    def _own_children(self) -> dict[str, object]:
        """Return the children that are not added by `_track_trackable`, by name."""
        return {}

    @property
    def _checkpoint_dependencies(self) -> list[TrackableReference]:
        """The children, as pairs of name and object."""
        return [TrackableReference(*child) for child in self._trackable_children().items()]

    def _lookup_dependency(self, name: str) -> object:
        """Return the child of this name, or None."""
        self._maybe_initialize_trackable()
        child = self._tracked.get(name)
        return self._own_children().get(name) if child is None else child

    def _preload_simple_restoration(self, name: str) -> Tensor | None:
        """Return the latest value that waits for a child of this name, or None.

        The value is the initial value of a variable that is created in eager mode.
        """
        positions = [pos for pos in self._awaited(name, None) if pos.is_simple_variable()]
        return max(positions, key=_get_uid).value() if positions else None

    def _handle_deferred_dependencies(self, name: str, trackable: object) -> None:
        """Restore a new child from the latest checkpoint value that waits for its name, if any.

        Values of earlier restores are dropped. If children belong to a graph (`PER_GRAPH`), values
        that were restored in other graphs keep waiting.

        Raises:
            CheckpointMismatchError: The child has another shape or dtype. The value keeps waiting.
        """
        positions = self._awaited(name, getattr(trackable, "graph", None))
        if not positions:
            return
        # If `restore` raises, all values keep waiting.
        max(positions, key=_get_uid).restore(trackable)
        waiting = [pos for pos in self._deferred_dependencies[name] if pos not in positions]
        self._deferred_dependencies = {**self._deferred_dependencies, name: waiting}
        if not waiting:
            del self._deferred_dependencies[name]

    def _await_dependency(self, name: str, position: Any) -> None:
        """Add a position that waits for the child of this name."""
        positions = self._deferred_dependencies.get(name, [])
        # A discarded twin of this object shares the dict and lists, so they are replaced.
        self._deferred_dependencies = {**self._deferred_dependencies, name: [*positions, position]}

    def _awaited(self, name: str, graph: object) -> list[Any]:
        """Return the positions that wait for a child in `graph`; None is eager mode."""
        self._maybe_initialize_trackable()
        positions = self._deferred_dependencies.get(name, [])
        return [pos for pos in positions if pos.graph is graph or not self.PER_GRAPH]

    def _begun(self, name: str, initial_value: object) -> Any:
        """Return the restored value that waits for the child `name`, else `initial_value`.

        The child is a variable that is created in eager mode.

        Raises:
            CheckpointMismatchError: The restored value differs from `initial_value` in shape or
                dtype.
        """
        restored: Any = self._preload_simple_restoration(name=name)
        if restored is None:
            return initial_value
        # An override of a subclass may return anything.
        if isinstance(restored, Tensor):
            problem = Entry(name, to_tensor(initial_value)).difference(restored)
            if problem is not None:
                raise mismatch([problem], "A value that was restored does not fit")
        return restored

    def _release(self, name: str) -> None:
        """Release the positions that wait for the child of this name."""
        for position in self._deferred_dependencies.get(name, ()):
            position.release()
        items = self._deferred_dependencies.items()
        self._deferred_dependencies = {key: pos for key, pos in items if key != name}

    def _forget_awaited(self) -> None:
        """Discard all waiting positions."""
        self._deferred_dependencies = {}


class TrackableSlots(Trackable):
    """Object with slots of variables: an optimizer.

    A restore does not create slots, because the rule defines their shapes and dtypes, and slots
    that are created together share a block of memory. Restored values wait until a step needs the
    slots, or until slots are read.
    """

    _NOT_COPIED: ClassVar[tuple[str, ...]] = ("_lock", "_plans")
    _lock: Guard
    _plans: PlanCaches
    _slots: SlotStore
    # The positions that wait for slots.
    _waiting: SlotStore

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        self = super().__new__(cls)
        self._set_up()
        return self

    def _set_up(self) -> None:
        """Create the attributes that are not copied."""
        # The lock orders steps and reads of the state by several threads.
        vars(self).update(_lock=Guard(self, type(self)._forget_step), _plans=PlanCaches())

    def _locked(self) -> Guard:
        return self._lock

    def _forget_step(self) -> None:
        """Discard the state of a step whose thread has ended."""

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in self._NOT_COPIED}

    def __setstate__(self, state: dict[str, object]) -> None:
        # The oldest protocols of pickle do not call `__new__`.
        self._set_up()
        vars(self).update(state)
        self._maybe_initialize_trackable()

    def _maybe_initialize_trackable(self) -> None:
        super()._maybe_initialize_trackable()
        vars(self).setdefault("_waiting", SlotStore())

    def _create_slots(self, var_list: list[Any]) -> None:
        raise NotImplementedError

    @property
    def _deferred_slot_restorations(self) -> dict[str, dict[object, list[Any]]]:
        """Waiting positions by slot name and by the variable's `_var_key`; a copy."""
        positions: dict[str, dict[Any, list[Any]]] = {}
        for var, name, position in self._waiting.triples():
            positions.setdefault(name, {})[self._slots.key(var)] = [position]
        return positions

    def _create_or_restore_slot_variable(
        self, slot_variable_position: Any, slot_name: str, variable: Tensor
    ) -> object:
        """Return the slot. If it is missing, store the position for its creation, and return None.

        A restore calls this method for each slot in the checkpoint.

        Args:
            slot_variable_position: Object that holds the checkpoint's value of the slot.
            slot_name: The slot's name, such as "m".
            variable: The slot's variable.
        """
        slot = self._slots.get(variable, slot_name)
        if slot is None:
            self._await_slot(slot_variable_position, slot_name, variable)
        return slot

    def _restore_slot_variable(self, slot_name: str, variable: Any, slot_variable: object) -> None:
        """Restore a new slot from the checkpoint value that waits for it, if any.

        Args:
            slot_name: The slot's name, such as "m".
            variable: The slot's variable.
            slot_variable: The new slot; changed.

        Raises:
            CheckpointMismatchError: The slot has another shape or dtype. The value keeps waiting.
        """
        position: Any = self._waiting.get(variable, slot_name)
        if position is not None:
            position.restore(slot_variable)
            self._waiting.forget(variable, slot_name)

    def _await_slot(self, position: Any, slot_name: str, variable: object) -> None:
        """Set the position that waits for a slot; it replaces one of an earlier restore."""
        self._waiting.put(variable, slot_name, position)

    def _take_slots(
        self, slot_name: str, variables: Sequence[object], slots: Sequence[object]
    ) -> None:
        """Restore new slots from waiting checkpoint values; call `_keep_slot(slot)` for each.

        After an error, the slot that caused it and all later slots are removed.
        """
        # Every new slot passes through here, so no waiting value can be missed.
        restored_count = 0
        try:
            for var, slot in zip(variables, slots, strict=True):
                self._restore_slot_variable(
                    slot_name=slot_name, variable=handle_of(var), slot_variable=slot
                )
                self._keep_slot(slot)
                restored_count += 1
        except BaseException:
            for var in variables[restored_count:]:
                self._slots.forget(var, slot_name)
            raise

    def _take_store(self, store: SlotStore, replacements: dict[int, object]) -> None:
        """Replace the slots, and drop the plans of steps, which hold the old ones.

        Args:
            store: The new slots.
            replacements: The new slots by the `id` of the slots that they replace.
        """
        self._slots, self._plans = store, PlanCaches()

    def _keep_slot(self, slot: object) -> None:
        """Handle a new slot with its value; a hook for subclasses."""

    def _settle(self, var: Any = None, slot_name: str | None = None) -> None:
        """Create the slots for which restored values wait. In graph mode, do nothing.

        Args:
            var, slot_name: Optional. Do nothing unless a value waits for this slot.
        """
        if current_session() is not None or not executing_eagerly():
            return
        if slot_name is not None and self._waiting.get(var, slot_name) is None:
            return
        # The creation of slots may read slots, which calls this method again: hence `_settling`.
        variables: list[object] = [var for var in self._waiting.owners() if not is_symbolic(var)]
        if variables and not vars(self).get("_settling"):
            with self._locked():
                vars(self)["_settling"] = True
                try:
                    self._make_awaited(variables)
                finally:
                    del vars(self)["_settling"]

    def _make_awaited(self, variables: list[object]) -> None:
        """Create all slots of these variables."""
        self._create_slots(variables)

    def _make_whole(self) -> None:
        """Create the objects that eager values wait for, so that a save includes them."""
        self._settle()

    def _forget_awaited(self) -> None:
        super()._forget_awaited()
        self._waiting = SlotStore()


def _get_uid(position: Any) -> int:
    return position.restore_uid

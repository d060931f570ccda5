"""How a saved value reaches an object that does not exist yet.

A checkpoint of objects is a graph: an object has children by name, some of which are variables, and
an optimizer has slots beside variables. A value that is restored before its object exists waits: a
child's with its parent, by name, and a slot's with the optimizer, by variable and name. Whatever
makes the object asks for it. The methods are those of TensorFlow's `Trackable`, for subclasses that
override or call them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast

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


class Position(Protocol):
    """A place in a checkpoint that waits for its object.

    Attributes:
        restore_uid: The number of the restore; a later one has a higher number.
        graph: The graph that was being built when it was restored; None in eager mode.
    """

    @property
    def restore_uid(self) -> int: ...

    @property
    def graph(self) -> Any: ...

    def is_simple_variable(self) -> bool:
        """Whether it is a value and nothing else."""
        ...

    def value(self) -> Tensor:
        """The value; not to be written to."""
        ...

    def restore(self, trackable: object) -> None:
        """Give an object what the checkpoint has for it; CheckpointMismatchError if it differs."""

    def release(self) -> None:
        """Wait no longer: another value was chosen."""


class TrackableReference(NamedTuple):
    """A child and its name."""

    name: str
    ref: Any


class Trackable:
    """What has children by name that checkpoints save.

    Attributes:
        PER_GRAPH: Whether each graph, and eager mode, has children of its own under the same names.
    """

    PER_GRAPH: ClassVar[bool] = False

    _tracked: dict[str, Any]
    _deferred_dependencies: dict[str, list[Position]]

    def _maybe_initialize_trackable(self) -> None:
        """Make what the other methods need, if it is not there."""
        own = vars(self)
        own.setdefault("_tracked", {})
        own.setdefault("_deferred_dependencies", {})

    def _checkpointed(self) -> object:
        """The object whose state is saved in place of this one's."""
        return self

    def _track_trackable(self, trackable: object, name: str, overwrite: bool = False) -> Any:
        """Make an object a child; it takes what was restored for a child of this name.

        Args:
            trackable: A variable, module, optimizer, or another object that has children.
            name: The child's name.
            overwrite: Whether another child of this name is replaced.

        Returns:
            The object.

        Raises:
            InvalidArgumentError: There is another child of this name.
        """
        self._maybe_initialize_trackable()
        known = self._lookup_dependency(name)
        if known is not None and known is not trackable and not overwrite:
            raise InvalidArgumentError(
                f"{type(self).__name__} tracks another object as {name!r} already. Give this one"
                " another name, or overwrite=True."
            )
        if known is not trackable:
            self._handle_deferred_dependencies(name=name, trackable=trackable)
        self._tracked[name] = trackable
        return trackable

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: object
    ) -> dict[str, object]:
        """The children by name, those of the graph that is being built.

        Args:
            save_type: What they are asked for; accepted for compatibility, as are others.
            **kwargs: Ignored.
        """
        self._maybe_initialize_trackable()
        return dict(self._tracked)

    @property
    def _checkpoint_dependencies(self) -> list[TrackableReference]:
        """The children, as pairs of name and object."""
        return [TrackableReference(*each) for each in self._trackable_children().items()]

    def _lookup_dependency(self, name: str) -> object:
        """The child of this name, or None if there is none (yet)."""
        self._maybe_initialize_trackable()
        return self._tracked.get(name)

    def _preload_simple_restoration(self, name: str) -> Tensor | None:
        """The value that was restored for a child that does not exist yet, or None.

        A variable that is made in eager mode then begins with it.
        """
        found = [each for each in self._awaited(name, None) if each.is_simple_variable()]
        return max(found, key=_uid_of).value() if found else None

    def _handle_deferred_dependencies(self, name: str, trackable: object) -> None:
        """Give a new child what was restored for it.

        Raises:
            CheckpointMismatchError: It has another shape or dtype. The value waits on.
        """
        found = self._awaited(name, getattr(trackable, "graph", None))
        if not found:
            return
        max(found, key=_uid_of).restore(trackable)
        left = [each for each in self._deferred_dependencies[name] if each not in found]
        self._deferred_dependencies = {**self._deferred_dependencies, name: left}
        if not left:
            del self._deferred_dependencies[name]

    def _await_dependency(self, name: str, position: Position) -> None:
        """Let a place wait for the child of this name."""
        before = self._deferred_dependencies.get(name, [])
        # Not in place: a twin that is given up must leave the original as it was.
        self._deferred_dependencies = {**self._deferred_dependencies, name: [*before, position]}

    def _awaited(self, name: str, graph: object) -> list[Position]:
        """What waits for a child of this name that is made in `graph`, or in eager mode."""
        self._maybe_initialize_trackable()
        found = self._deferred_dependencies.get(name, [])
        return [each for each in found if each.graph is graph or not self.PER_GRAPH]

    def _begun(self, name: str, initial_value: object) -> Any:
        """What a child that is made in eager mode begins with: what was restored, or this.

        Raises:
            CheckpointMismatchError: What was restored has another shape or dtype.
        """
        restored: Any = self._preload_simple_restoration(name=name)
        if restored is None:
            return initial_value
        if isinstance(restored, Tensor):  # a subclass's own may be anything
            problem = Entry(name, to_tensor(initial_value)).difference(restored)
            if problem is not None:
                raise mismatch([problem], "A value that was restored does not fit")
        return restored

    def _release(self, name: str) -> None:
        """Let go of what waits for the child of this name."""
        for each in self._deferred_dependencies.get(name, ()):
            each.release()
        own = self._deferred_dependencies.items()
        self._deferred_dependencies = {key: each for key, each in own if key != name}

    def _forget_awaited(self) -> None:
        """Let go of everything that waits."""
        self._deferred_dependencies = {}


class TrackableSlots(Trackable):
    """What keeps slots beside variables: an optimizer.

    Slots do not come to be by a restore, in eager mode either: those that an optimizer makes
    together lie in one block, and their shapes and dtypes are its rule's. So they wait until the
    first step that needs them, or until somebody asks for slots.
    """

    _NOT_COPIED: ClassVar[tuple[str, ...]] = ("_lock", "_plans")
    _lock: Guard
    _plans: PlanCaches
    _slots: SlotStore
    _waiting: SlotStore  # of places in checkpoints

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        self = super().__new__(cls)
        self._set_up()
        return self

    def _set_up(self) -> None:
        """Make what is not copied."""
        # Steps of several threads, and looks at the state, come one after the other.
        vars(self).update(_lock=Guard(self, type(self)._forget_step), _plans=PlanCaches())

    def _locked(self) -> Guard:
        return self._lock

    def _forget_step(self) -> None:
        """Drop what only the step of a thread needed that is no more."""

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in self._NOT_COPIED}

    def __setstate__(self, state: dict[str, object]) -> None:
        self._set_up()  # the oldest protocols of pickle call no `__new__`
        vars(self).update(state)
        self._maybe_initialize_trackable()

    def _maybe_initialize_trackable(self) -> None:
        super()._maybe_initialize_trackable()
        vars(self).setdefault("_waiting", SlotStore())

    def _create_slots(self, var_list: list[Any]) -> None:
        raise NotImplementedError

    @property
    def _deferred_slot_restorations(self) -> dict[str, dict[object, list[Position]]]:
        """What waits for slots: by the slot's name, and by its variable's `_var_key`; a copy."""
        found: dict[str, dict[Any, list[Position]]] = {}
        for var, name, position in self._waiting.triples():
            found.setdefault(name, {})[self._slots.key(var)] = [cast(Position, position)]
        return found

    def _create_or_restore_slot_variable(
        self, slot_variable_position: Position, slot_name: str, variable: Tensor
    ) -> object:
        """The slot that a value is restored to; None if it waits until the slot is made.

        Called by a restore for each slot that the checkpoint has.

        Args:
            slot_variable_position: The place in the checkpoint.
            slot_name: The slot's name, as "m".
            variable: The slot's variable.
        """
        found = self._slots.get(variable, slot_name)
        if found is None:
            self._await_slot(slot_variable_position, slot_name, variable)
        return found

    def _restore_slot_variable(self, slot_name: str, variable: Any, slot_variable: object) -> None:
        """Give a new slot what was restored for it; called for each slot that is made.

        Args:
            slot_name: The slot's name, as "m".
            variable: The slot's variable.
            slot_variable: The slot.

        Raises:
            CheckpointMismatchError: It has another shape or dtype. The value waits on.
        """
        position: Any = self._waiting.get(variable, slot_name)
        if position is not None:
            position.restore(slot_variable)
            self._waiting.forget(variable, slot_name)

    def _await_slot(self, position: Position, slot_name: str, variable: object) -> None:
        """Let a place wait for a slot, instead of what an earlier restore left to wait for it."""
        self._waiting.put(variable, slot_name, position)

    def _take_slots(
        self, slot_name: str, variables: Sequence[object], slots: Sequence[object]
    ) -> None:
        """Take slots that have just been made: all that are made come by here.

        If one of them is refused, it and those after it are forgotten.
        """
        taken = 0
        try:
            for var, slot in zip(variables, slots, strict=True):
                self._restore_slot_variable(
                    slot_name=slot_name, variable=handle_of(var), slot_variable=slot
                )
                self._keep_slot(slot)
                taken += 1
        except BaseException:
            for var in variables[taken:]:
                self._slots.forget(var, slot_name)
            raise

    def _take_store(self, store: SlotStore, taken: dict[int, object]) -> None:
        """Have other slots.

        Args:
            store: Those.
            taken: Those that take the place of others, by the `id` of these.
        """
        self._slots = store

    def _keep_slot(self, slot: object) -> None:
        """A slot was made and has its value."""

    def _settle(self, var: Any = None, slot_name: str | None = None) -> None:
        """Make the slots that values wait for, for somebody who asks for slots.

        Args:
            var, slot_name: Optional. The only slot that is asked for.
        """
        if current_session() is not None or not executing_eagerly():
            return
        if slot_name is not None and self._waiting.get(var, slot_name) is None:
            return
        owners: list[object] = [each for each in self._waiting.owners() if not is_symbolic(each)]
        if owners and not vars(self).get("_settling"):
            with self._locked():
                vars(self)["_settling"] = True
                try:
                    self._make_awaited(owners)
                finally:
                    del vars(self)["_settling"]

    def _make_awaited(self, variables: list[object]) -> None:
        """Make all slots of these variables."""
        self._create_slots(variables)

    def _make_whole(self) -> None:
        """Make what was restored for eager mode and waits, so that it can be saved."""
        self._settle()

    def _forget_awaited(self) -> None:
        super()._forget_awaited()
        self._waiting = SlotStore()


def _uid_of(position: Position) -> int:
    return position.restore_uid

"""`Restoration`: one restore of a checkpoint. A *position* is an object's index in the file's list.

Each position has at most one value. Values of existing objects are set now; values of missing
objects wait until the objects are created.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from thalweg._base.context_managers import ContextSetting
from thalweg._base.locks import Lock
from thalweg._base.static_shape import UNKNOWN
from thalweg._core import state
from thalweg._core.state import Entry, alike
from thalweg._core.trackable import Trackable, TrackableSlots
from thalweg._formats.bundle import ObjectGraph
from thalweg._graph import GraphVariable, constant
from thalweg._graph.variables import begin_with
from thalweg.v1.train.saving.objects.members import (
    SUFFIX,
    VALUE,
    child_of,
    held_by,
    hold_steps,
    is_variable,
    members_of,
    optimizers_in,
)
from thalweg.variable import dtype_name

# Positions of an optimizer and a variable, the name of a slot, and the slot's position.
Link = tuple[int, int, str, int]

_restore_counter = itertools.count(1)


class Restoration:
    """Values of a checkpoint's file, and the objects into which the values were restored.

    Args:
        source: The file, for messages.
        graph: The object graph of the file.
        values: {position: value of a variable}.
        building: The graph that is being built; None in eager mode.

    Attributes:
        number: Number of the restore; later restores have higher numbers.
        source: The file.
        graph: The argument `building`.
        nodes: The objects of the file.
        links: {position of an optimizer or variable: its slots}.
        objects: {position: restored object}.
        unused: {position: value} of positions without an object.
        assignments: {graph variable: value}; `run_restore_ops` loads the values into a session.
        is_first: True until the first call of `settle`. Until then, `unused` shares memory with the
            file.
    """

    def __init__(
        self, source: str, graph: ObjectGraph, values: Mapping[int, Tensor], building: object
    ) -> None:
        self.number = next(_restore_counter)
        self.source, self.graph = source, building
        self.nodes, self.links = graph.nodes, _link_slots(graph)
        self.objects: dict[int, object] = {}
        self.unused = dict(values)
        self.assignments: dict[GraphVariable, Tensor] = {}
        self.is_first = True
        self._valued = frozenset(values)
        self._lock = Lock()
        self._walk: Walk | None = None

    def name(self, node: int) -> str:
        """Return the key of a value in the file, without TensorFlow's ending."""
        keys = (entry.key for entry in self.nodes[node].attributes if entry.name == VALUE)
        return next(keys, f"object {node}").removesuffix(SUFFIX)

    def waiting(self) -> list[str]:
        """Return the names of the values that have found no object."""
        return [self.name(node) for node in sorted(self._valued - self.objects.keys())]

    def settle(self, objects: Mapping[int, object], pending_nodes: Iterable[int]) -> None:
        """Record restored objects, and drop values that are no longer needed.

        The first call also drops the values that cannot be reached from `pending_nodes`.

        Args:
            objects: {position: restored object}; the values of these positions are dropped.
            pending_nodes: Positions whose objects do not exist yet.
        """
        unused = {node: tensor for node, tensor in self.unused.items() if node not in objects}
        if self.is_first:
            reachable = self._reachable_from(pending_nodes)
            # Copied, so that the memory of the whole file can be freed.
            unused = {node: tensor.clone() for node, tensor in unused.items() if node in reachable}
        self.objects = {**objects, **self.objects}
        self.unused, self.is_first = unused, False

    def _reachable_from(self, pending_nodes: Iterable[int]) -> set[int]:
        """Return `pending_nodes` and all positions of their children and slots, recursively."""
        reachable: set[int] = set()
        pending = list(pending_nodes)
        while pending:
            node = pending.pop()
            if node not in reachable:
                reachable.add(node)
                pending += self.nodes[node].children.values()
                pending += [slot for _, _, _, slot in self.links.get(node, ())]
        return reachable

    def bind(self, node: int, owner: object) -> None:
        """Restore the values of a position, its children and its slots into an object.

        Either all values are set, or none. If a child does not exist yet, its parent stores the
        position, and restores the child later. An optimizer stores the positions of missing slots.

        Args:
            node: The position.
            owner: The object.

        Raises:
            CheckpointMismatchError: Shapes or dtypes differ. Nothing was changed.
        """
        # A hook of a subclass called this within a restore.
        if self._lock.is_mine() and self._walk is not None:
            self._walk.pending.append((node, owner))
            return
        with self._hold_steps(owner), self._lock:
            self._walk = Walk(self)
            try:
                self._walk.run(node, owner)
            finally:
                self._walk = None

    def _hold_steps(self, owner: object) -> ContextSetting:
        """Return a context manager that locks all optimizers whose state may change."""
        # A variable is restored when an optimizer creates it; the optimizer holds its lock then.
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
    """Reference to a position whose object does not exist yet; kept by the object's parent.

    Args:
        restoration: The restore.
        node: The position.
    """

    def __init__(self, restoration: Restoration, node: int) -> None:
        self._restoration, self._node = restoration, node

    @property
    def restore_uid(self) -> int:
        """The number of the restore; later restores have higher numbers."""
        return self._restoration.number

    @property
    def graph(self) -> Any:
        """The graph under construction at the restore; None in eager mode."""
        return self._restoration.graph

    def is_simple_variable(self) -> bool:
        """Return True if the position has a value that is not restored yet, and no children."""
        restoration, node = self._restoration, self._node
        return node in restoration.unused and not restoration.nodes[node].children

    def value(self) -> Tensor:
        """Return the value of the file; the caller must not write to it."""
        return self._restoration.unused[self._node]

    def restore(self, trackable: object) -> None:
        """Restore the values of this position, its children and its slots into an object.

        Raises:
            CheckpointMismatchError: Shapes or dtypes differ. Nothing has changed.
        """
        self._restoration.bind(self._node, trackable)

    def release(self) -> None:
        """Drop the value, because the object got a value from elsewhere."""
        self._restoration.settle({self._node: None}, ())

    def __repr__(self) -> str:
        return f"<{self._restoration.name(self._node)!r} of {self._restoration.source}>"


class Walk:
    """Traversal of a file's positions and the program's objects for one call of `bind`.

    A walk matches objects to positions, checks all values, and then sets all values.

    Args:
        values: The restore, with the values of the file.

    Attributes:
        pending: (position, object) pairs to visit.
    """

    def __init__(self, values: Restoration) -> None:
        self.pending: list[tuple[int, Any]] = []
        self._values = values
        self._objects: dict[int, object] = {}
        self._visited: set[tuple[int, int]] = set()
        self._linked: set[tuple[int, int, int]] = set()
        # Targets by position and id of the variable.
        self._targets: dict[tuple[int, int], tuple[int, Any]] = {}
        self._missing: list[tuple[Trackable, str, int]] = []
        # Positions whose objects do not exist yet.
        self._waiting_nodes: set[int] = set()
        self._saved_attributes: dict[int, tuple[Trackable, dict[str, object]]] = {}

    def run(self, node: int, owner: object) -> None:
        """Restore values into an object, its children and slots; change nothing on an error."""
        self.pending.append((node, owner))
        try:
            # The list grows during the loop.
            for entry in self.pending:
                self._visit_object(*entry)
            # Everything is checked before the first write.
            differences = [self._describe_difference(*target) for target in self._targets.values()]
            differences += self._describe_contradictions()
            if problems := [difference for difference in differences if difference is not None]:
                raise state.mismatch(problems, self._values.source)
            for parent, name, child in self._missing:
                self._remember_waiting(parent)
                parent._await_dependency(name, Position(self._values, child))
                self._waiting_nodes.add(child)
            self._write_values()
        except BaseException:
            for keeper, attributes in self._saved_attributes.values():
                vars(keeper).update(attributes)
            raise
        self._values.settle(self._objects, self._waiting_nodes)

    def _visit_object(self, node: int, owner: object) -> None:
        """Record `owner` as the target of the value at `node`; queue the children and slots.

        Add children that the file has, but `owner` lacks, to `_missing`.
        """
        held = held_by(owner, self._values.graph)
        if (node, id(held)) in self._visited:
            return
        self._visited.add((node, id(held)))
        self._objects.setdefault(node, held)
        if is_variable(held) and node in self._values.unused:
            self._targets[node, id(held)] = node, held
        for name, child in self._values.nodes[node].children.items():
            child_object = child_of(owner, name)
            if child_object is not None:
                self.pending.append((child, child_object))
            else:
                parents = {id(view): view for view in (owner, held) if isinstance(view, Trackable)}
                self._missing += [(view, name, child) for view in parents.values()]
        for link in self._values.links.get(node, ()):
            self._link_slot(link, node, held)

    def _link_slot(self, link: Link, node: int, held: Any) -> None:
        """Queue the slot of `link`; do nothing unless both optimizer and variable were visited.

        If the optimizer has no such slot and creates none now, it stores the slot's position for
        its first step.

        Args:
            link: Positions of optimizer and variable, the slot's name, the slot's position.
            node, held: A position in `link`, and its object, the optimizer or the variable.
        """
        ends: list[Any] = [
            held if end == node else self._objects.get(end, self._values.objects.get(end))
            for end in link[:2]
        ]
        (optimizer, variable), (name, slot) = ends, link[2:]
        key = slot, id(optimizer), id(variable)
        is_slot = isinstance(optimizer, TrackableSlots) and is_variable(variable)
        if not is_slot or key in self._linked or slot not in self._values.unused:
            return
        self._linked.add(key)
        self._remember_waiting(optimizer)
        # An optimizer that creates the slot now calls `bind`, which adds to `pending`.
        position, count = Position(self._values, slot), len(self.pending)
        slot_variable = optimizer._create_or_restore_slot_variable(
            slot_variable_position=position, slot_name=name, variable=variable
        )
        if slot_variable is not None:
            self.pending.append((slot, slot_variable))
        elif all(node != slot for node, _ in self.pending[count:]):
            optimizer._await_slot(position, name, variable)
            self._waiting_nodes.add(slot)

    def _remember_waiting(self, keeper: Trackable) -> None:
        """Save the positions that an object stores; `run` puts them back after an error."""
        if id(keeper) not in self._saved_attributes:
            keeper._maybe_initialize_trackable()
            attributes: dict[str, Any] = {"_deferred_dependencies": keeper._deferred_dependencies}
            if isinstance(keeper, TrackableSlots):
                attributes["_waiting"] = keeper._waiting.__copy__()
            self._saved_attributes[id(keeper)] = keeper, attributes

    def _describe_difference(self, node: int, variable: Any) -> str | None:
        """Return why the value of a position does not fit a variable, or None if it fits."""
        name, tensor = self._values.name(node), self._values.unused[node]
        if not isinstance(variable, GraphVariable):
            return next(iter(state.differences([Entry(name, variable)], {name: tensor})), None)
        fits = variable.shape.accepts(tensor.shape)
        if fits and variable.dtype in (tensor.dtype, None):
            return None
        actual = f"{dtype_name(tensor.dtype)} of shape {tuple(tensor.shape)}"
        expected = "any shape" if variable.shape is UNKNOWN else f"shape {tuple(variable.shape)}"
        return (
            f"{name!r} is {actual}, not {dtype_name(variable.dtype or tensor.dtype)} of {expected}"
        )

    def _describe_contradictions(self) -> Iterator[str]:
        """Yield an error text for each graph variable that would get two different values."""
        first: dict[int, int] = {}
        for node, variable in self._targets.values():
            if isinstance(variable, GraphVariable):
                first_node = first.setdefault(id(variable), node)
                if not alike(self._values.unused[first_node], self._values.unused[node]):
                    yield (
                        f"{self._values.name(first_node)!r} and {self._values.name(node)!r} are one"
                        " variable here, and are given different values"
                    )

    def _write_values(self) -> None:
        """Write values of eager variables in one commit; record values of graph variables."""
        values, targets = self._values, self._targets.values()
        pairs = [
            (Entry(values.name(node), variable), values.unused[node])
            for node, variable in targets
            if not isinstance(variable, GraphVariable)
        ]
        state.restore(state.Loading(pairs, what=values.source))
        for node, variable in targets:
            if isinstance(variable, GraphVariable):
                values.assignments[variable] = values.unused[node]
                # A variable that was made after the restore gets the value as its initial value.
                if not values.is_first:
                    _begin_with(variable, values.unused[node])


def _begin_with(variable: GraphVariable, tensor: Tensor) -> None:
    graph = variable.graph
    with graph.as_default(), graph.control_dependencies(None):
        begin_with(variable, constant(tensor, name=f"{variable.op.name}/restored"))


def _link_slots(graph: ObjectGraph) -> dict[int, list[Link]]:
    links: dict[int, list[Link]] = {}
    for index, node in enumerate(graph.nodes):
        for slot in node.slots:
            link = index, slot.original, slot.name, slot.slot
            for end in {index, slot.original}:
                links.setdefault(end, []).append(link)
    return links

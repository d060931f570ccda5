"""`Walk`: from one position of a file and its object to all that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from thalweg._base.static_shape import UNKNOWN
from thalweg._core import state
from thalweg._core.state import Entry, alike
from thalweg._core.trackable import Position, Trackable, TrackableSlots
from thalweg._graph import GraphVariable, constant
from thalweg._graph.variables import begin_with
from thalweg.v1.train.saving.objects.members import child_of, held_by, is_variable
from thalweg.v1.train.saving.objects.values import Link, ObjectValues
from thalweg.variable import dtype_name


class Walk:
    """Finds the objects of positions, checks all values, and then sets all of them.

    Args:
        values: What the file has.
        place: Makes the `Position` of a position.

    Attributes:
        pending: Positions and their objects that have yet to be looked at.
    """

    def __init__(self, values: ObjectValues, place: Callable[[int], Position]) -> None:
        self.pending: list[tuple[int, Any]] = []
        self._values, self._place = values, place
        self._objects: dict[int, object] = {}
        self._seen: set[tuple[int, int]] = set()
        self._linked: set[tuple[int, int, int]] = set()
        self._targets: dict[tuple[int, int], tuple[int, Any]] = {}  # by position, variable's id
        self._missing: list[tuple[Trackable, str, int]] = []
        self._awaited: set[int] = set()  # positions that wait
        self._before: dict[int, tuple[Trackable, dict[str, object]]] = {}  # what waited there

    def run(self, node: int, owner: object) -> None:
        """See `Restoration.bind`."""
        self.pending.append((node, owner))
        try:
            for each in self.pending:  # it grows meanwhile
                self._visit_object(*each)
            self._check_targets()
            for parent, name, place in self._missing:
                self._remember_waiting(parent)
                parent._await_dependency(name, self._place(place))
                self._awaited.add(place)
            self._write_values()
        except BaseException:
            for keeper, before in self._before.values():
                vars(keeper).update(before)
            raise
        self._values.settle(self._objects, self._awaited)

    def _visit_object(self, node: int, owner: object) -> None:
        held = held_by(owner, self._values.graph)
        if (node, id(held)) in self._seen:
            return
        self._seen.add((node, id(held)))
        self._objects.setdefault(node, held)
        if is_variable(held) and node in self._values.left:
            self._targets[node, id(held)] = node, held
        for name, child in self._values.nodes[node].children.items():
            found = child_of(owner, name)
            if found is not None:
                self.pending.append((child, found))
            else:
                parents = {id(each): each for each in (owner, held) if isinstance(each, Trackable)}
                self._missing += [(each, name, child) for each in parents.values()]
        for link in self._values.links.get(node, ()):
            self._link_slot(link, node, held)

    def _link_slot(self, link: Link, node: int, held: Any) -> None:
        """Restore a slot, if its optimizer and its variable are both found."""
        ends = [held if end == node else self._object_at(end) for end in link[:2]]
        (optimizer, variable), (name, slot) = ends, link[2:]
        key = slot, id(optimizer), id(variable)
        is_slot = isinstance(optimizer, TrackableSlots) and is_variable(variable)
        if not is_slot or key in self._linked or slot not in self._values.left:
            return
        self._linked.add(key)
        self._remember_waiting(optimizer)
        position, count = self._place(slot), len(self.pending)
        made = optimizer._create_or_restore_slot_variable(
            slot_variable_position=position, slot_name=name, variable=variable
        )
        if made is not None:
            self.pending.append((slot, made))
        elif all(place != slot for place, _ in self.pending[count:]):
            optimizer._await_slot(position, name, variable)  # whatever a subclass did with it
            self._awaited.add(slot)

    def _object_at(self, node: int) -> Any:
        return self._objects.get(node, self._values.objects.get(node))

    def _remember_waiting(self, keeper: Trackable) -> None:
        """Note what waits with an object, to put it back if the restore is refused."""
        if id(keeper) not in self._before:
            keeper._maybe_initialize_trackable()
            before: dict[str, Any] = {"_deferred_dependencies": keeper._deferred_dependencies}
            if isinstance(keeper, TrackableSlots):
                before["_waiting"] = keeper._waiting.__copy__()
            self._before[id(keeper)] = keeper, before

    def _check_targets(self) -> None:
        found = [self._describe_difference(*each) for each in self._targets.values()]
        found += self._describe_contradictions()
        if problems := [each for each in found if each is not None]:
            raise state.mismatch(problems, self._values.source)

    def _describe_difference(self, node: int, held: Any) -> str | None:
        name, value = self._values.name(node), self._values.left[node]
        if not isinstance(held, GraphVariable):
            return next(iter(state.differences([Entry(name, held)], {name: value})), None)
        fits = held.shape.accepts(value.shape)
        if fits and held.dtype in (value.dtype, None):
            return None
        given = f"{dtype_name(value.dtype)} of shape {tuple(value.shape)}"
        own = "any shape" if held.shape is UNKNOWN else f"shape {tuple(held.shape)}"
        return f"{name!r} is {given}, not {dtype_name(held.dtype or value.dtype)} of {own}"

    def _describe_contradictions(self) -> Iterator[str]:
        """Variables of the graph that would be given two values; `state.restore` finds others."""
        first: dict[int, int] = {}
        for node, held in self._targets.values():
            if isinstance(held, GraphVariable):
                other = first.setdefault(id(held), node)
                if not alike(self._values.left[other], self._values.left[node]):
                    yield (
                        f"{self._values.name(other)!r} and {self._values.name(node)!r} are one"
                        " variable here, and are given different values"
                    )

    def _write_values(self) -> None:
        values, targets = self._values, self._targets.values()
        pairs = [
            (Entry(values.name(node), held), values.left[node])
            for node, held in targets
            if not isinstance(held, GraphVariable)
        ]
        state.restore(state.Loading(pairs, what=values.source))
        for node, held in targets:
            if isinstance(held, GraphVariable):
                values.assignments[held] = values.left[node]
                if not values.is_first:  # it was made after the restore
                    _begin_with(held, values.left[node])


def _begin_with(variable: GraphVariable, value: Tensor) -> None:
    graph = variable.graph
    with graph.as_default(), graph.control_dependencies(None):
        begin_with(variable, constant(value, name=f"{variable.op.name}/restored"))

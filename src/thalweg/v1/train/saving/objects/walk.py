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
    """Traversal that finds the objects of positions, checks all values, and then sets all of them.

    A position is the index of an object in the file's list of objects.

    Args:
        values: The values of the file.
        place: Returns the `Position` object of a position.

    Attributes:
        pending: (position, object) pairs to visit.
    """

    def __init__(self, values: ObjectValues, place: Callable[[int], Position]) -> None:
        self.pending: list[tuple[int, Any]] = []
        self._values, self._place = values, place
        self._objects: dict[int, object] = {}
        self._visited: set[tuple[int, int]] = set()
        self._linked: set[tuple[int, int, int]] = set()
        self._targets: dict[tuple[int, int], tuple[int, Any]] = {}  # by position, variable's id
        self._missing: list[tuple[Trackable, str, int]] = []
        self._waiting_places: set[int] = set()  # positions that wait
        self._saved_attributes: dict[int, tuple[Trackable, dict[str, object]]] = {}

    def run(self, node: int, owner: object) -> None:
        """Restore a position into an object with its children; see `Restoration.bind`."""
        self.pending.append((node, owner))
        try:
            for entry in self.pending:  # it grows meanwhile
                self._visit_object(*entry)
            self._check_targets()
            for parent, name, place in self._missing:
                self._remember_waiting(parent)
                parent._await_dependency(name, self._place(place))
                self._waiting_places.add(place)
            self._write_values()
        except BaseException:
            for keeper, attributes in self._saved_attributes.values():
                vars(keeper).update(attributes)
            raise
        self._values.settle(self._objects, self._waiting_places)

    def _visit_object(self, node: int, owner: object) -> None:
        """Record the value, the children and the slots of one object for the checks and writes of
        `run`.

        Children that do not exist are recorded as missing, to be restored later.
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
        """Restore a slot if the objects of its optimizer and of its variable are known.

        The optimizer may create the slot, or store the position until its first step creates it.
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
        position, count = self._place(slot), len(self.pending)
        slot_variable = optimizer._create_or_restore_slot_variable(
            slot_variable_position=position, slot_name=name, variable=variable
        )
        if slot_variable is not None:
            self.pending.append((slot, slot_variable))
        elif all(place != slot for place, _ in self.pending[count:]):
            optimizer._await_slot(position, name, variable)
            self._waiting_places.add(slot)

    def _remember_waiting(self, keeper: Trackable) -> None:
        """Save the stored positions of an object, which `run` puts back after an error."""
        if id(keeper) not in self._saved_attributes:
            keeper._maybe_initialize_trackable()
            attributes: dict[str, Any] = {"_deferred_dependencies": keeper._deferred_dependencies}
            if isinstance(keeper, TrackableSlots):
                attributes["_waiting"] = keeper._waiting.__copy__()
            self._saved_attributes[id(keeper)] = keeper, attributes

    def _check_targets(self) -> None:
        differences = [self._describe_difference(*target) for target in self._targets.values()]
        differences += self._describe_contradictions()
        if problems := [target for target in differences if target is not None]:
            raise state.mismatch(problems, self._values.source)

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
        """Yield a message for each variable of a graph that would get two values."""
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
        """Write all values into eager variables in one commit, and record those of graph variables.

        A graph variable that was created after the restore gets the value as its initial value.
        """
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
                if not values.is_first:  # it was made after the restore
                    _begin_with(variable, values.unused[node])


def _begin_with(variable: GraphVariable, tensor: Tensor) -> None:
    graph = variable.graph
    with graph.as_default(), graph.control_dependencies(None):
        begin_with(variable, constant(tensor, name=f"{variable.op.name}/restored"))

"""`ObjectValues`: what a file has for objects, and which of them it has found."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from torch import Tensor

from thalweg._formats.bundle import ObjectGraph
from thalweg._graph import GraphVariable
from thalweg.v1.train.saving.objects.members import SUFFIX, VALUE

Link = tuple[int, int, str, int]  # positions of optimizer and variable, the slot's name, its own

_numbers = itertools.count(1)


class ObjectValues:
    """Values of a file for objects, and the objects that they were restored into.

    A position is the index of an object in the file's list of objects.

    Args:
        source: The file, for messages.
        graph: The object graph of the file.
        values: The values of variables by position.
        building: The graph that is being built; None in eager mode.

    Attributes:
        number: The number of the restore; later restores have higher numbers.
        source: As given.
        graph: The graph that was being built.
        nodes: The objects of the file.
        links: The slots of each optimizer and of each variable, by position.
        objects: The restored object of each position.
        unused: The values of positions without an object, by position.
        assignments: The values of graph variables, which `run_restore_ops` loads into a session.
        is_first: True until the first call of `settle`; `unused` is the file's own memory until
            then.
    """

    def __init__(
        self, source: str, graph: ObjectGraph, values: Mapping[int, Tensor], building: object
    ) -> None:
        self.number = next(_numbers)
        self.source, self.graph = source, building
        self.nodes, self.links = graph.nodes, _slot_links(graph)
        self.objects: dict[int, object] = {}
        self.unused = dict(values)
        self.assignments: dict[GraphVariable, Tensor] = {}
        self.is_first = True
        self._valued = frozenset(values)

    def name(self, node: int) -> str:
        """Return the key of a value in the file, without TensorFlow's ending."""
        keys = (entry.key for entry in self.nodes[node].attributes if entry.name == VALUE)
        return next(keys, f"object {node}").removesuffix(SUFFIX)

    def waiting(self) -> list[str]:
        """Return the names of the values that have found no object."""
        return [self.name(node) for node in sorted(self._valued - self.objects.keys())]

    def settle(self, objects: Mapping[int, object], pending_nodes: Iterable[int]) -> None:
        """Record the objects of positions, and keep only the values that may still be restored.

        Args:
            objects: The objects by position.
            pending_nodes: Positions whose objects do not exist yet. At the first call only values
                that are reachable from these positions are kept.
        """
        unused = {node: tensor for node, tensor in self.unused.items() if node not in objects}
        if self.is_first:
            reachable = self._reachable_from(pending_nodes)
            unused = {node: tensor.clone() for node, tensor in unused.items() if node in reachable}
        self.objects = {**objects, **self.objects}
        self.unused, self.is_first = unused, False

    def _reachable_from(self, pending_nodes: Iterable[int]) -> set[int]:
        """Return all positions that are children or slots of the given positions, and these
        themselves.
        """
        reachable: set[int] = set()
        pending = list(pending_nodes)
        while pending:
            node = pending.pop()
            if node not in reachable:
                reachable.add(node)
                pending += self.nodes[node].children.values()
                pending += [slot for _, _, _, slot in self.links.get(node, ())]
        return reachable


def _slot_links(graph: ObjectGraph) -> dict[int, list[Link]]:
    links: dict[int, list[Link]] = {}
    for place, node in enumerate(graph.nodes):
        for slot in node.slots:
            link = place, slot.original, slot.name, slot.slot
            for end in {place, slot.original}:
                links.setdefault(end, []).append(link)
    return links

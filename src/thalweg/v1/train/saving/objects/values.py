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
    """Values of a file for objects, and the objects that were found.

    Args:
        source: The file, for messages.
        graph: The graph of the file's objects.
        values: The values of variables, by their positions among these objects.
        building: The graph that is being built; None in eager mode.

    Attributes:
        number: Later ones have higher numbers.
        source: As given.
        graph: The graph that was being built.
        nodes: The objects of the file.
        links: The slots of each optimizer and of each variable, by their positions.
        objects: The object found for each position.
        unused: The values of positions without an object, by position.
        assignments: The values of graph variables, which sessions load.
        is_first: Whether no object was found yet, and `unused` is the file's own memory.
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
        """Note that positions have found objects, and keep what others may ask for later.

        Args:
            objects: The objects.
            pending_nodes: The positions that wait; of the others only what these lead to is kept.
        """
        unused = {node: tensor for node, tensor in self.unused.items() if node not in objects}
        if self.is_first:
            reachable = self._reachable_from(pending_nodes)
            unused = {node: tensor.clone() for node, tensor in unused.items() if node in reachable}
        self.objects = {**objects, **self.objects}
        self.unused, self.is_first = unused, False

    def _reachable_from(self, pending_nodes: Iterable[int]) -> set[int]:
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

"""Object graph of a checkpoint of `tf.train.Checkpoint` (an object checkpoint).

The message is TrackableObjectGraph of tensorflow/core/protobuf/trackable_object_graph.proto; a
bundle stores it as a string under `KEY`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from thalweg._formats.bundle.errors import CorruptFileError, locate_flaws, quote_name
from thalweg._formats.bundle.proto import (
    BYTES,
    VARINT,
    ProtoMessage,
    bytes_field,
    number_field,
    string_field,
)

KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Kinds of the fields of a node's messages: 1 for children (number, name), 2 for attributes, 3 for
# slots.
_ROWS = {1: (VARINT, BYTES), 2: (BYTES, BYTES, BYTES), 3: (VARINT, BYTES, VARINT)}


class SavedAttribute(NamedTuple):
    """Saved value of an object, stored as a tensor of the bundle.

    Attributes:
        name: "VARIABLE_VALUE" for the tensor of a variable.
        full_name: The name of the variable in a name-based checkpoint, "w/Adam".
        key: The name of the tensor in the bundle.
    """

    name: str
    full_name: str
    key: str


class SlotVariable(NamedTuple):
    """A slot of an optimizer.

    Attributes:
        original: The node number of the variable that has the slot.
        name: The name, "m".
        slot: The node number of the slot.
    """

    original: int
    name: str
    slot: int


@dataclass(frozen=True, slots=True)
class Node:
    """An object of an object checkpoint, with its children.

    Attributes:
        children: {attribute name: node number}.
        attributes: The values of the object.
        slots: The slots, if the object is an optimizer.
    """

    children: Mapping[str, int] = field(default_factory=dict[str, int])
    attributes: tuple[SavedAttribute, ...] = ()
    slots: tuple[SlotVariable, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectGraph:
    """Objects of a checkpoint; the first is the root.

    Attributes:
        nodes: The objects; node numbers are indices in this tuple.
    """

    nodes: tuple[Node, ...]


def decode_graph(serialized: bytes) -> ObjectGraph:
    """Return the graph in a serialized message.

    Raise CorruptFileError if the bytes are not an object graph, or refer to missing nodes.
    """
    messages = ProtoMessage(serialized, {1: BYTES}).every(1)
    if not messages:
        raise CorruptFileError("it has no objects")
    nodes: list[Node] = []
    for position, message in enumerate(messages):
        with locate_flaws(f"object {position}"):
            nodes.append(_decode_node(message))
            for neighbor in _neighbors_of(nodes[-1]):
                if not 0 <= neighbor < len(messages):
                    raise CorruptFileError(f"it names object {neighbor} of {len(messages)}")
    return ObjectGraph(tuple(nodes))


def select_values(graph: ObjectGraph, should_keep: Callable[[str], bool]) -> ObjectGraph:
    """Return a copy of a graph without the values for which `should_keep` returns False.

    `should_keep(key)` is called with the name of a value's tensor. The slot of an optimizer is
    removed if the value of the slot or of its variable is removed.
    """
    nodes = [
        replace(node, attributes=tuple(a for a in node.attributes if should_keep(a.key)))
        for node in graph.nodes
    ]
    emptied = {
        position
        for position, (old_node, new_node) in enumerate(zip(graph.nodes, nodes, strict=True))
        if old_node.attributes and not new_node.attributes
    }
    return ObjectGraph(
        tuple(
            replace(
                node,
                slots=tuple(
                    slot for slot in node.slots if emptied.isdisjoint((slot.original, slot.slot))
                ),
            )
            for node in nodes
        )
    )


def encode_graph(graph: ObjectGraph) -> bytes:
    """Return the serialized message of a graph."""
    valued = _nodes_with_values(graph)
    return b"".join(
        bytes_field(1, _encode_node(node, position in valued))
        for position, node in enumerate(graph.nodes)
    )


def _decode_node(serialized: bytes) -> Node:
    """Return the `Node` in a serialized message; raise CorruptFileError if it is invalid."""
    message = ProtoMessage(serialized, {1: BYTES, 2: BYTES, 3: BYTES})
    children: dict[str, int] = {}
    for child, name in _decode_rows(message, 1):
        if name in children:
            raise CorruptFileError(f"it has {quote_name(name)} twice")
        children[name] = child
    attributes = tuple(SavedAttribute(*row) for row in _decode_rows(message, 2))
    return Node(children, attributes, tuple(SlotVariable(*row) for row in _decode_rows(message, 3)))


def _decode_rows(message: ProtoMessage, field: int) -> Iterator[list[Any]]:
    """Yield the fields of each message in the repeated field `field`, in order of their numbers."""
    kinds = dict(enumerate(_ROWS[field], 1))
    for element in message.every(field):
        row = ProtoMessage(element, kinds)
        yield [
            row.signed(number) if kind == VARINT else row.text(number)
            for number, kind in kinds.items()
        ]


def _encode_node(node: Node, has_values: bool) -> bytes:
    """Return an object as a serialized message.

    `has_values` is a flag in the message: True if the object or a descendant has a value.
    """
    children = ((child, name) for name, child in node.children.items())
    encoded = b""
    for number, rows in enumerate((children, node.attributes, node.slots), 1):
        for row in rows:
            parts = (
                number_field(index, entry) if isinstance(entry, int) else string_field(index, entry)
                for index, entry in enumerate(row, 1)
            )
            encoded += bytes_field(number, b"".join(parts))
    return encoded + bytes_field(5, number_field(1, int(has_values)))


def _neighbors_of(node: Node) -> Iterator[int]:
    """Yield the nodes that a node refers to."""
    yield from node.children.values()
    for slot in node.slots:
        yield from (slot.original, slot.slot)


def _nodes_with_values(graph: ObjectGraph) -> set[int]:
    """Return the numbers of all nodes that have a value, and of their ancestors.

    Slots, and optimizers with slots, count as nodes with a value.
    """
    parents: dict[int, list[int]] = {}
    valued: set[int] = set()
    for position, node in enumerate(graph.nodes):
        for child in node.children.values():
            parents.setdefault(child, []).append(position)
        if node.attributes:
            valued.add(position)
        valued.update(index for slot in node.slots for index in (position, slot.slot))
    pending = list(valued)
    while pending:
        for parent in parents.get(pending.pop(), ()):
            if parent not in valued:
                valued.add(parent)
                pending.append(parent)
    return valued

"""Objects of an object checkpoint, whose variables it contains.

The message is TrackableObjectGraph of tensorflow/core/protobuf/trackable_object_graph.proto; a
bundle keeps it as a string under `KEY`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

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


@dataclass(frozen=True, slots=True)
class SavedAttribute:
    """A value of an object: of a variable, the variable itself.

    Attributes:
        name: "VARIABLE_VALUE" for that of a variable.
        full_name: The name of the variable; that it has in a name-based checkpoint, "w/Adam".
        key: The name of the tensor in the bundle.
    """

    name: str
    full_name: str
    key: str


@dataclass(frozen=True, slots=True)
class SlotVariable:
    """A slot of an optimizer.

    Attributes:
        original: The number of the node of the variable that it is a slot of.
        name: Its name, "m".
        slot: The number of its own node.
    """

    original: int
    name: str
    slot: int


@dataclass(frozen=True, slots=True)
class Node:
    """An object.

    Attributes:
        children: The numbers of the nodes that it leads to, by the names of its attributes.
        attributes: Its values.
        slots: The slots it has, if it is an optimizer.
    """

    children: Mapping[str, int] = field(default_factory=dict[str, int])
    attributes: tuple[SavedAttribute, ...] = ()
    slots: tuple[SlotVariable, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectGraph:
    """Objects of a checkpoint; the first is its root.

    Attributes:
        nodes: The objects. Others name them by their positions.
    """

    nodes: tuple[Node, ...]


def decode_graph(data: bytes) -> ObjectGraph:
    """Return the graph in a message.

    Raises:
        CorruptFileError: The bytes are none, or name nodes that are not there.
    """
    messages = ProtoMessage(data, {1: BYTES}).every(1)
    if not messages:
        raise CorruptFileError("it has no objects")
    nodes: list[Node] = []
    for position, each in enumerate(messages):
        with locate_flaws(f"object {position}"):
            nodes.append(_decode_node(each))
            for other in _neighbors_of(nodes[-1]):
                if not 0 <= other < len(messages):
                    raise CorruptFileError(f"it names object {other} of {len(messages)}")
    return ObjectGraph(tuple(nodes))


def select_values(graph: ObjectGraph, should_keep: Callable[[str], bool]) -> ObjectGraph:
    """Return a graph without the values whose keys are not kept, and without slots of these."""
    nodes = [
        replace(node, attributes=tuple(each for each in node.attributes if should_keep(each.key)))
        for node in graph.nodes
    ]
    emptied = {
        position
        for position, (before, after) in enumerate(zip(graph.nodes, nodes, strict=True))
        if before.attributes and not after.attributes
    }
    return ObjectGraph(
        tuple(
            replace(
                node,
                slots=tuple(
                    each for each in node.slots if emptied.isdisjoint((each.original, each.slot))
                ),
            )
            for node in nodes
        )
    )


def encode_graph(graph: ObjectGraph) -> bytes:
    """Return the message of a graph."""
    valued = _nodes_with_values(graph)
    return b"".join(
        bytes_field(1, _encode_node(node, position in valued))
        for position, node in enumerate(graph.nodes)
    )


def _decode_node(data: bytes) -> Node:
    found = ProtoMessage(data, {1: BYTES, 2: BYTES, 3: BYTES})
    children: dict[str, int] = {}
    for each in found.every(1):
        child = ProtoMessage(each, {1: VARINT, 2: BYTES})
        name = child.text(2)
        if name in children:
            raise CorruptFileError(f"it has {quote_name(name)} twice")
        children[name] = child.signed(1)
    attributes: list[SavedAttribute] = []
    for each in found.every(2):
        value = ProtoMessage(each, {1: BYTES, 2: BYTES, 3: BYTES})
        attributes.append(SavedAttribute(value.text(1), value.text(2), value.text(3)))
    slots: list[SlotVariable] = []
    for each in found.every(3):
        slot = ProtoMessage(each, {1: VARINT, 2: BYTES, 3: VARINT})
        slots.append(SlotVariable(slot.signed(1), slot.text(2), slot.signed(3)))
    return Node(children, tuple(attributes), tuple(slots))


def _encode_node(node: Node, has_values: bool) -> bytes:
    made = b""
    for name, child in node.children.items():
        made += bytes_field(1, number_field(1, child) + string_field(2, name))
    for value in node.attributes:
        made += bytes_field(
            2,
            string_field(1, value.name)
            + string_field(2, value.full_name)
            + string_field(3, value.key),
        )
    for slot in node.slots:
        made += bytes_field(
            3,
            number_field(1, slot.original)
            + string_field(2, slot.name)
            + number_field(3, slot.slot),
        )
    return made + bytes_field(5, number_field(1, int(has_values)))


def _neighbors_of(node: Node) -> Iterator[int]:
    """The nodes that a node names."""
    yield from node.children.values()
    for slot in node.slots:
        yield from (slot.original, slot.slot)


def _nodes_with_values(graph: ObjectGraph) -> set[int]:
    """The nodes that have values, or lead to some that have: TensorFlow passes over all others."""
    parents: dict[int, list[int]] = {}
    found: set[int] = set()
    for position, node in enumerate(graph.nodes):
        for child in node.children.values():
            parents.setdefault(child, []).append(position)
        if node.attributes:
            found.add(position)
        found.update(other for slot in node.slots for other in (position, slot.slot))
    pending = list(found)
    while pending:
        for parent in parents.get(pending.pop(), ()):
            if parent not in found:
                found.add(parent)
                pending.append(parent)
    return found

"""Files of object checkpoints: ours, and those of TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from thalweg._formats import atomic_write, bundle, container
from thalweg._formats.bundle import Node, ObjectGraph, SavedAttribute, SlotVariable
from thalweg._formats.format_detection import reader_of
from thalweg._formats.path_resolution import ENDING, PathKind, locate_checkpoint
from thalweg._formats.stored_tensor import StoredTensor, of_tensor
from thalweg.errors import (
    DataLossError,
    UnsupportedCheckpointError,
)
from thalweg.v1.train.saving.objects.members import VALUE

KIND = "tf.train.Checkpoint"


def write(prefix: str, graph: ObjectGraph, values: Mapping[str, Tensor]) -> None:
    """Write a checkpoint, all of it or nothing; its folder is made if it is not there.

    Args:
        prefix: The path of the file without its ending.
        graph: What the objects are.
        values: The values of their variables by the graph's keys; not changed meanwhile.
    """
    atomic_write.make_folder(os.path.dirname(prefix) or ".")
    stored = {key: of_tensor(value) for key, value in values.items()}
    container.write(prefix + ENDING, stored, {"kind": KIND, "object_graph": encode_graph(graph)})


def read(prefix: str) -> tuple[ObjectGraph, dict[int, Tensor]]:
    """Read a checkpoint, all of it or nothing.

    Args:
        prefix: The path without ".safetensors", or without TensorFlow's ".index".

    Returns:
        What the objects are, and the values of variables, by their positions among the objects.

    Raises:
        MissingFileError: There is no such checkpoint.
        DataLossError: It is damaged.
        UnsupportedCheckpointError: It says nothing of objects.
    """
    graph, tensors = _read_file(prefix)
    values: dict[int, Tensor] = {}
    for place, node in enumerate(graph.nodes):
        for each in node.attributes:
            if each.name == VALUE and each.key in tensors:
                values[place] = tensors[each.key].tensor()
            elif each.name == VALUE:
                raise _damage_error(prefix, f"names {each.key!r}, which has no value")
    return graph, values


def _read_file(prefix: str) -> tuple[ObjectGraph, dict[str, StoredTensor]]:
    place = locate_checkpoint(prefix).of_savers()
    if place.kind is not PathKind.OURS:
        read = bundle.read(place.path)
        if read.graph is None:
            raise _without_objects(prefix, "thalweg.v1.train.Saver reads it, in a session")
        return read.graph, read.tensors
    found = container.read(place.path)
    graph = found.document.get("object_graph")
    if graph is None:
        raise _without_objects(prefix, reader_of(found.document.get("kind")))
    return decode_graph(graph, prefix), found.tensors


def _without_objects(prefix: str, reader: str) -> UnsupportedCheckpointError:
    return UnsupportedCheckpointError(
        f"{prefix}: it has tensors by name and says nothing of objects: {reader}."
    )


def encode_graph(graph: ObjectGraph) -> list[dict[str, Any]]:
    """Return a graph as JSON."""
    return [
        {
            "children": dict(node.children),
            "values": [[each.name, each.full_name, each.key] for each in node.attributes],
            "slots": [[each.original, each.name, each.slot] for each in node.slots],
        }
        for node in graph.nodes
    ]


def decode_graph(nodes: object, source: str) -> ObjectGraph:
    """Return a graph from its JSON.

    Args:
        nodes: What `encode_graph` returned.
        source: Where it is from, for messages.

    Raises:
        DataLossError: It is something else, or names an object that is not there.
    """
    if not isinstance(nodes, list) or not nodes:
        raise _damage_error(source, "is no list of objects")
    every = cast("list[Any]", nodes)

    def check_position(value: object) -> int:
        if type(value) is not int or not 0 <= value < len(every):
            raise _damage_error(source, f"names object {str(value)[:20]} of {len(every)}")
        return value

    return ObjectGraph(tuple(_decode_node(each, check_position, source) for each in every))


def _decode_node(given: object, position: Any, source: str) -> Node:
    kinds = {"children": dict, "values": list, "slots": list}
    if (
        not isinstance(given, dict)
        or {key: type(value) for key, value in cast("dict[str, Any]", given).items()} != kinds
    ):
        raise _damage_error(source, "has what is no object")
    children, values, slots = cast("tuple[Any, Any, Any]", (given[key] for key in kinds))
    rows = [*(("sss", each) for each in values), *(("psp", each) for each in slots)]
    for kind, row in rows:
        if not isinstance(row, list) or len(cast("list[Any]", row)) != len(kind):
            raise _damage_error(source, "has a row of another length")
        for letter, each in zip(kind, cast("list[Any]", row), strict=True):
            if letter == "p":
                position(each)
            elif not isinstance(each, str):
                raise _damage_error(source, f"has {str(each)[:20]} as a name")
    return Node(
        {name: position(child) for name, child in children.items()},
        tuple(SavedAttribute(*row) for row in values),
        tuple(SlotVariable(*row) for row in slots),
    )


def _damage_error(source: str, what: str) -> DataLossError:
    return DataLossError(f"{source}: its object graph {what}.")

"""Files of object checkpoints, of this library and of TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from thalweg._formats import atomic_write, bundle, container
from thalweg._formats.bundle import Node, ObjectGraph, SavedAttribute, SlotVariable
from thalweg._formats.format_detection import reader_of
from thalweg._formats.path_resolution import ENDING, PathKind, locate_checkpoint
from thalweg._formats.stored_tensor import StoredTensor, of_tensor
from thalweg.errors import DataLossError, UnsupportedCheckpointError
from thalweg.v1.train.saving.objects.members import VALUE

KIND = "tf.train.Checkpoint"


def write(prefix: str, graph: ObjectGraph, values: Mapping[str, Tensor]) -> None:
    """Write an object checkpoint atomically; create its folder if missing.

    Args:
        prefix: The path without ".safetensors".
        graph: The description of the objects.
        values: {key in `graph`: value of a variable}. Values must not change during the call.
    """
    atomic_write.make_folder(os.path.dirname(prefix) or ".")
    tensors = {key: of_tensor(tensor) for key, tensor in values.items()}
    container.write(prefix + ENDING, tensors, {"kind": KIND, "object_graph": encode_graph(graph)})


def read(prefix: str) -> tuple[ObjectGraph, dict[int, Tensor]]:
    """Read an object checkpoint of this library or of TensorFlow.

    Args:
        prefix: The path without ".safetensors", or without TensorFlow's ".index".

    Returns:
        (object graph, {index of a variable in `graph.nodes`: value}).

    Raises:
        MissingFileError: The checkpoint does not exist.
        DataLossError: The file is damaged.
        UnsupportedCheckpointError: The file has no object graph.
    """
    graph, tensors = _read_file(prefix)
    values: dict[int, Tensor] = {}
    for index, node in enumerate(graph.nodes):
        for attribute in node.attributes:
            if attribute.name == VALUE and attribute.key in tensors:
                values[index] = tensors[attribute.key].tensor()
            elif attribute.name == VALUE:
                raise _make_damage_error(prefix, f"names {attribute.key!r}, which has no value")
    return graph, values


def _read_file(prefix: str) -> tuple[ObjectGraph, dict[str, StoredTensor]]:
    """Return (object graph, {key: stored tensor}) of a checkpoint; see `read` for the errors."""
    resolved = locate_checkpoint(prefix).of_savers()
    if resolved.kind is not PathKind.OURS:
        read = bundle.read(resolved.path)
        if read.graph is None:
            raise _make_no_objects_error(prefix, "thalweg.v1.train.Saver reads it, in a session")
        return read.graph, read.tensors
    content = container.read(resolved.path)
    graph = content.document.get("object_graph")
    if graph is None:
        raise _make_no_objects_error(prefix, reader_of(content.document.get("kind")))
    return decode_graph(graph, prefix), content.tensors


def _make_no_objects_error(prefix: str, reader: str) -> UnsupportedCheckpointError:
    return UnsupportedCheckpointError(
        f"{prefix}: it has tensors by name and says nothing of objects: {reader}."
    )


def encode_graph(graph: ObjectGraph) -> list[dict[str, Any]]:
    """Return an object graph as JSON: one dict per node with "children", "values" and "slots"."""
    return [
        {
            "children": dict(node.children),
            "values": [[entry.name, entry.full_name, entry.key] for entry in node.attributes],
            "slots": [[entry.original, entry.name, entry.slot] for entry in node.slots],
        }
        for node in graph.nodes
    ]


def decode_graph(nodes: Any, source: str) -> ObjectGraph:
    """Return an object graph from the JSON that `encode_graph` returned.

    Args:
        nodes: The JSON, a list of dicts.
        source: The file, for errors.

    Raises:
        DataLossError: `nodes` has another structure, or an index outside of the list.
    """
    if not isinstance(nodes, list) or not nodes:
        raise _make_damage_error(source, "is no list of objects")

    def check_position(position: object) -> int:
        # bool is a subclass of int, and True must not be an index.
        if type(position) is not int or not 0 <= position < len(nodes):
            raise _make_damage_error(source, f"names object {str(position)[:20]} of {len(nodes)}")
        return position

    return ObjectGraph(tuple(_decode_node(node, check_position, source) for node in nodes))


def _decode_node(node: Any, position: Any, source: str) -> Node:
    """Return a node of the object graph from its JSON.

    Raise DataLossError if `node` has another structure.

    Args:
        node: The JSON, a dict.
        position: `position(index)` returns `index`, or raises if it is not an index of a node.
    """
    kinds = {"children": dict, "values": list, "slots": list}
    if not isinstance(node, dict) or {key: type(entry) for key, entry in node.items()} != kinds:
        raise _make_damage_error(source, "has what is no object")
    children, values, slots = (node[key] for key in kinds)
    # The types of a row's fields: "s" is a string, "p" a position.
    rows = [*(("sss", field) for field in values), *(("psp", field) for field in slots)]
    for kind, row in rows:
        if not isinstance(row, list) or len(row) != len(kind):
            raise _make_damage_error(source, "has a row of another length")
        for letter, field in zip(kind, row, strict=True):
            if letter == "p":
                position(field)
            elif not isinstance(field, str):
                raise _make_damage_error(source, f"has {str(field)[:20]} as a name")
    return Node(
        {name: position(child) for name, child in children.items()},
        tuple(SavedAttribute(*row) for row in values),
        tuple(SlotVariable(*row) for row in slots),
    )


def _make_damage_error(source: str, problem: str) -> DataLossError:
    return DataLossError(f"{source}: its object graph {problem}.")

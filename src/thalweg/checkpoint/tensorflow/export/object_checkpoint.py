"""A checkpoint as `tf.train.Checkpoint` writes it: an object graph, and tensors by its paths."""

from __future__ import annotations

from typing import Any

import torch

from thalweg._core import state
from thalweg._formats.bundle import Node, ObjectGraph, SavedAttribute, SlotVariable
from thalweg._formats.stored_tensor import StoredTensor, of_tensor
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import GLOBAL_STEP, SAVE_COUNTER
from thalweg.checkpoint.tensorflow.detection.object_checkpoint import ATTRIBUTE, SUFFIX
from thalweg.checkpoint.tensorflow.export.export_contents import ExportContents
from thalweg.keras.optimizers import Optimizer as KerasOptimizer

_OPTIMIZER = "optimizer"
_SLOT = "/.OPTIMIZER_SLOT/"


def as_objects(found: ExportContents) -> tuple[dict[str, StoredTensor], ObjectGraph]:
    """Return the tensors by their keys, and the graph.

    Raises:
        CheckpointMismatchError: A variable has a name that the optimizer or the count of steps has.
            Nothing was written.
    """
    taken = {SAVE_COUNTER, *([_OPTIMIZER] * (found.optimizer is not None))}
    taken |= {GLOBAL_STEP} if found.global_step is not None else set()
    twice = [
        f"{name!r} begins with {name.split('/')[0]!r}, which is another object"
        for name in found.variables
        if name.split("/")[0] in taken
    ]
    if twice:
        raise state.mismatch(twice, outcome="Nothing was written.")
    made = _Graph()
    nodes = {name: made.add_variable(name, value, name) for name, value in found.variables.items()}
    if found.optimizer is not None:
        _add_optimizer(made, found, nodes)
    if found.global_step is not None:
        made.add_variable(GLOBAL_STEP, found.global_step, GLOBAL_STEP)
    counter = of_tensor(torch.tensor(1, dtype=torch.int64, device="cpu"))
    made.add_variable(SAVE_COUNTER, counter, SAVE_COUNTER)
    return made.tensors, made.as_object_graph()


def _add_optimizer(made: _Graph, found: ExportContents, nodes: dict[str, int]) -> None:
    optimizer: Any = found.optimizer
    is_keras = isinstance(optimizer, KerasOptimizer)
    title = found.optimizer._name if is_keras else optimizer.get_name()
    place = made.find_or_add([_OPTIMIZER])
    for name, value in found.scalars.items():
        made.add_variable(f"{_OPTIMIZER}/{name}", value, f"{title}/{name}" if is_keras else name)
    for name, own in found.slots.items():
        for index, (kind, value) in enumerate(own.items()):
            number = f"_{index}" if index else ""
            full = f"{title}/{name}/{kind}" if is_keras else f"{name}/{title}{number}"
            made.add_slot(place, nodes[name], name, kind, value, full)


class _Graph:
    """An object graph under construction.

    Attributes:
        tensors: The tensors so far, by key.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, StoredTensor] = {}
        self._children: list[dict[str, int]] = [{}]
        self._attributes: dict[int, SavedAttribute] = {}
        self._slots: dict[int, list[SlotVariable]] = {}

    def find_or_add(self, parts: list[str]) -> int:
        """Return the node at the end of a path from the root, made if it is not there."""
        at = 0
        for part in parts:
            if part not in self._children[at]:
                self._children[at][part] = self._add_node()
            at = self._children[at][part]
        return at

    def add_variable(self, path: str, value: StoredTensor, full_name: str) -> int:
        """Return a variable at a path; its node."""
        parts = path.split("/")
        node = self.find_or_add(parts)
        self._add_value(node, f"{_escape_path(parts)}{SUFFIX}", value, full_name)
        return node

    def add_slot(
        self,
        optimizer: int,
        original: int,
        path: str,
        kind: str,
        value: StoredTensor,
        full_name: str,
    ) -> None:
        """A slot of the variable at a path."""
        node = self._add_node()
        key = f"{_escape_path(path.split('/'))}{_SLOT}{_OPTIMIZER}/{_escape_path([kind])}{SUFFIX}"
        self._add_value(node, key, value, full_name)
        self._slots.setdefault(optimizer, []).append(SlotVariable(original, kind, node))

    def as_object_graph(self) -> ObjectGraph:
        """Return the graph."""
        return ObjectGraph(
            tuple(
                Node(
                    children,
                    tuple([self._attributes[node]] if node in self._attributes else ()),
                    tuple(self._slots.get(node, ())),
                )
                for node, children in enumerate(self._children)
            )
        )

    def _add_node(self) -> int:
        self._children.append({})
        return len(self._children) - 1

    def _add_value(self, node: int, key: str, value: StoredTensor, full_name: str) -> None:
        self._attributes[node] = SavedAttribute(ATTRIBUTE, full_name, key)
        self.tensors[key] = value


def _escape_path(parts: list[str]) -> str:
    """A path as keys have it: TensorFlow writes a dot in a name as two."""
    return "/".join(part.replace(".", "..") for part in parts)

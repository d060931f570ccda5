"""`save`: write a checkpoint that TensorFlow restores.

A file of `tf.train.Saver` has tensors by name; a file of `tf.train.Checkpoint` also has an object
graph.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from thalweg._core import state
from thalweg._formats import bundle
from thalweg._formats.atomic_write import Path, Progress
from thalweg._formats.bundle import Node, ObjectGraph, SavedAttribute, SlotVariable
from thalweg._formats.stored_tensor import StoredTensor, of_tensor
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import GLOBAL_STEP, SAVE_COUNTER
from thalweg.checkpoint.tensorflow.detection.object_checkpoint import ATTRIBUTE, SUFFIX
from thalweg.checkpoint.tensorflow.detection.saver_names import AVERAGE
from thalweg.checkpoint.tensorflow.export_contents import ExportContents, copy_contents
from thalweg.checkpoint.tensorflow.mapping.mapped_tensors import TargetTensors
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import Rules
from thalweg.keras.optimizers import Optimizer as KerasOptimizer
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1.train.rule_optimizer import RuleOptimizer

Kind = Literal["tf2", "tf1"]
_AVERAGE = "grads_ema"
_OPTIMIZER = "optimizer"
_SLOT = "/.OPTIMIZER_SLOT/"


def save(
    prefix: Path,
    optimizer: object,
    variables: object,
    rules: object = None,
    kind: Kind = "tf2",
    *,
    global_step: object = None,
    averages: Mapping[str, Tensor] | None = None,
    progress: Progress | None = None,
) -> None:
    """Write variables and an optimizer as a TensorFlow checkpoint.

    A "tf1" checkpoint is restored by `tf.train.Saver`. A "tf2" checkpoint is restored by
    `tf.train.Checkpoint(model=..., optimizer=...)`, with the equally named class of
    `tf.compat.v1.train` or `tf.keras.optimizers.legacy`. Rules of `restore` are applied backwards.
    Without rules, `layer1.weight` becomes `layer1/weight`, with "tf2" `model/layer1/weight`.

    Args:
        prefix: The path of the checkpoint for TensorFlow, such as "run7/ckpt-5".
        optimizer: An optimizer of `thalweg.v1` or `thalweg.keras`, or None.
        variables: A module, a dictionary of variables by name, or a list of variables.
        rules: Optional. The path of a rules file, or a dictionary.
        kind: "tf2" or "tf1".
        global_step: Optional. The variable that counts steps, saved as "global_step".
        averages: Optional. {name of a variable: moving average}; only with "tf1".
        progress: `progress(bytes_written, total_bytes)` is called during writing.

    Raises:
        CheckpointMismatchError: A variable has no name in TensorFlow, two share a name, or the
            optimizer has slots of a variable that is not saved. Nothing was written.
        InvalidTypeError: TensorFlow has no checkpoint of this class of optimizer.
        CheckpointWriteError: A file cannot be written.
    """
    tensors, graph = tensors_of(optimizer, variables, rules, kind, global_step, averages)
    bundle.write(prefix, tensors, graph, progress=progress)


def tensors_of(
    optimizer: object,
    variables: object,
    rules: object,
    kind: Kind,
    global_step: object = None,
    averages: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, StoredTensor], ObjectGraph | None]:
    """Return ({name: tensor} that `save` writes, object graph or None). Tensors are copies.

    The graph is None for "tf1". Arguments and errors are as for `save`.
    """
    contents = copy_contents(
        optimizer, TargetTensors.of(variables), Rules.of(rules), kind, global_step, averages
    )
    return (_name_tensors(contents), None) if kind == "tf1" else _build_objects(contents)


def _name_tensors(contents: ExportContents) -> dict[str, StoredTensor]:
    """Return {name: tensor} of all contents, as `tf.train.Saver` names them.

    Raises:
        CheckpointMismatchError: A slot or scalar has the name of a variable. Nothing was written.
    """
    tensors = dict(contents.variables)
    clashes: list[str] = []
    for index, (name, by_kind) in enumerate(contents.slots.items()):
        for kind, suffix in zip(by_kind, _number_suffixes(contents, by_kind), strict=True):
            full = f"{name}/{suffix}"
            # OpenSeq2Seq numbers these averages, and does not name them after variables.
            if isinstance(contents.optimizer, NovoGrad) and kind == _AVERAGE:
                full = f"nvgrad2_ema{index}"
            clashes += [f"{full!r} is a variable and a slot of {name!r}"] * (full in tensors)
            tensors[full] = by_kind[kind]
    scalars = {**contents.scalars}
    scalars |= {f"{name}/{AVERAGE}": average for name, average in contents.averages.items()}
    if contents.global_step is not None:
        scalars[GLOBAL_STEP] = contents.global_step
    clashes += [
        f"{name!r} is a variable and the optimizer's" for name in scalars if name in tensors
    ]
    state.raise_mismatch(clashes, outcome="Nothing was written.")
    return {**tensors, **scalars}


def _number_suffixes(contents: ExportContents, kinds: Iterable[str]) -> list[str]:
    """Return the last parts of the names of a variable's slots, such as ["Adam", "Adam_1"].

    `kinds` are the optimizer's names of these slots, such as ["m", "v"].
    """
    optimizer: Any = contents.optimizer
    names = {kind: optimizer.get_name() for kind in kinds}
    if isinstance(optimizer, RuleOptimizer):
        fills: Any = contents.optimizer._slot_fills()
        names |= {kind: name for kind, _, name in fills}
    used: Counter[str] = Counter()
    suffixes: list[str] = []
    for name in (names[kind] for kind in kinds):
        suffixes.append(f"{name}_{used[name]}" if used[name] else name)
        used[name] += 1
    return suffixes


def _build_objects(contents: ExportContents) -> tuple[dict[str, StoredTensor], ObjectGraph]:
    """Return ({key: tensor} of all contents, object graph).

    Raises:
        CheckpointMismatchError: A variable has the name of the optimizer or of the step count.
            Nothing was written.
    """
    reserved = {SAVE_COUNTER, *([_OPTIMIZER] * (contents.optimizer is not None))}
    reserved |= {GLOBAL_STEP} if contents.global_step is not None else set()
    clashes = [
        f"{name!r} begins with {name.split('/')[0]!r}, which is another object"
        for name in contents.variables
        if name.split("/")[0] in reserved
    ]
    state.raise_mismatch(clashes, outcome="Nothing was written.")
    graph = _Graph()
    variables = contents.variables.items()
    nodes = {name: graph.add_variable(name, tensor, name) for name, tensor in variables}
    if contents.optimizer is not None:
        _add_optimizer(graph, contents, nodes)
    if contents.global_step is not None:
        graph.add_variable(GLOBAL_STEP, contents.global_step, GLOBAL_STEP)
    # `tf.train.Checkpoint` has a counter of its saves.
    counter = of_tensor(torch.tensor(1, dtype=torch.int64, device="cpu"))
    graph.add_variable(SAVE_COUNTER, counter, SAVE_COUNTER)
    return graph.tensors, graph.as_object_graph()


def _add_optimizer(graph: _Graph, contents: ExportContents, nodes: dict[str, int]) -> None:
    """Add an optimizer's scalars and slots to `graph`; `nodes` is {variable name: node number}."""
    optimizer: Any = contents.optimizer
    is_keras = isinstance(optimizer, KerasOptimizer)
    optimizer_name = contents.optimizer._name if is_keras else optimizer.get_name()
    node = graph.find_or_add([_OPTIMIZER])
    for name, tensor in contents.scalars.items():
        full = f"{optimizer_name}/{name}" if is_keras else name
        graph.add_variable(f"{_OPTIMIZER}/{name}", tensor, full)
    for name, by_kind in contents.slots.items():
        for index, (kind, tensor) in enumerate(by_kind.items()):
            suffix = f"_{index}" if index else ""
            v1_name = f"{name}/{optimizer_name}{suffix}"
            full = f"{optimizer_name}/{name}/{kind}" if is_keras else v1_name
            graph.add_slot(node, nodes[name], name, kind, tensor, full)


class _Graph:
    """Object graph under construction.

    Attributes:
        tensors: {key: tensor} of the tensors added so far.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, StoredTensor] = {}
        self._children: list[dict[str, int]] = [{}]
        self._attributes: dict[int, tuple[SavedAttribute]] = {}
        self._slots: defaultdict[int, list[SlotVariable]] = defaultdict(list)

    def find_or_add(self, segments: list[str]) -> int:
        """Return the number of the node at a path from the root; add missing nodes."""
        node = 0
        for segment in segments:
            if segment not in self._children[node]:
                self._children[node][segment] = self._add_node()
            node = self._children[node][segment]
        return node

    def add_variable(self, object_path: str, tensor: StoredTensor, full_name: str) -> int:
        """Add a variable at the path `object_path`, and return its node number."""
        segments = object_path.split("/")
        node = self.find_or_add(segments)
        self._add_value(node, f"{_escape_path(segments)}{SUFFIX}", tensor, full_name)
        return node

    def add_slot(
        self,
        optimizer: int,
        original: int,
        object_path: str,
        kind: str,
        tensor: StoredTensor,
        full_name: str,
    ) -> None:
        """Add a slot of the variable at the path `object_path`.

        `optimizer` and `original` are the node numbers of the optimizer and of the variable.
        `full_name` is the slot's name in the program.
        """
        node = self._add_node()
        path = _escape_path(object_path.split("/"))
        key = f"{path}{_SLOT}{_OPTIMIZER}/{_escape_path([kind])}{SUFFIX}"
        self._add_value(node, key, tensor, full_name)
        self._slots[optimizer].append(SlotVariable(original, kind, node))

    def as_object_graph(self) -> ObjectGraph:
        """Return the nodes added so far as an `ObjectGraph`."""
        nodes = (
            Node(children, self._attributes.get(index, ()), tuple(self._slots[index]))
            for index, children in enumerate(self._children)
        )
        return ObjectGraph(tuple(nodes))

    def _add_node(self) -> int:
        """Append an empty node; return its number."""
        self._children.append({})
        return len(self._children) - 1

    def _add_value(self, node: int, key: str, tensor: StoredTensor, full_name: str) -> None:
        """Set the value of a node, and store the tensor under its key."""
        self._attributes[node] = (SavedAttribute(ATTRIBUTE, full_name, key),)
        self.tensors[key] = tensor


def _escape_path(segments: list[str]) -> str:
    """Return a path as in keys, with doubled dots."""
    return "/".join(segment.replace(".", "..") for segment in segments)

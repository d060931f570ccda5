"""Sorting of an object checkpoint (`tf.train.Checkpoint`) by its object graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from thalweg._formats.bundle import ObjectGraph
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.checkpoint.tensorflow.detection.beta_powers import with_steps
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import (
    GLOBAL_STEP,
    SAVE_COUNTER,
    FoundOptimizer,
    TensorFlowCheckpoint,
    with_loss_scale,
)
from thalweg.checkpoint.tensorflow.detection.keras_objects import (
    MARKS,
    TRAINED,
    ListedVariables,
    sort_numbered,
)
from thalweg.checkpoint.tensorflow.detection.scalars import (
    FLOATS,
    INTEGERS,
    OF_KERAS_3,
    OF_SCALES,
    as_number,
    count_of,
    if_valid,
)
from thalweg.checkpoint.tensorflow.detection.slot_families import KERAS, V1, Family, with_slots
from thalweg.checkpoint.tensorflow.detection.variable_order import Owner
from thalweg.errors import DataLossError

ATTRIBUTE = "VARIABLE_VALUE"
SUFFIX = f"/.ATTRIBUTES/{ATTRIBUTE}"
# The child of the loss-scaling wrapper of Keras 3.
INNER = "inner_optimizer"
_KERAS_SCALARS = ("learning_rate", "decay", "momentum_cache", "iter")


def sorted_objects(
    path: str, stored_tensors: Mapping[str, StoredTensor], graph: ObjectGraph, class_name: str = ""
) -> TensorFlowCheckpoint:
    """Sort the tensors of an object checkpoint into variables, optimizers and counters.

    Args:
        stored_tensors: {key: tensor}.
        class_name: Optional. The class of a Keras 3 optimizer that has another name in the file.

    Raises:
        DataLossError: The graph refers to a missing tensor or node.
    """
    view = _GraphView(path, stored_tensors, graph, class_name)
    nodes = view.optimizer_nodes()
    scales = view.loss_scales(nodes)
    optimizers = [
        with_loss_scale(view.sort_optimizer(node), scales.get(node, {})) for node in nodes
    ]
    free = [node for node in view.keys if node not in view.claimed]
    counters = {view.name(node): view.value(node) for node in free if view.is_counter(node)}
    variables = {view.name(node): view.value(node) for node in free if not view.is_counter(node)}
    used_keys = set(view.keys.values())
    counts = {
        name: count
        for name, counter in counters.items()
        if name != SAVE_COUNTER and (count := count_of(counter)) is not None
    }
    return TensorFlowCheckpoint(
        path=path,
        kind="object",
        variables=variables,
        optimizers=tuple(_with_hyperparameters(detected, counts) for detected in optimizers),
        counters=counters,
        unknown={name: tensor for name, tensor in stored_tensors.items() if name not in used_keys},
        other_names=view.unique_full_names(set(variables)),
        source=dict(stored_tensors),
        graph=graph,
    )


class _GraphView:
    """Object graph of a checkpoint, with a name for each node.

    Attributes:
        keys: {node number of a variable: key of its value}.
        claimed: The nodes assigned to optimizers so far; methods that sort an optimizer add nodes.
    """

    def __init__(
        self,
        path: str,
        stored_tensors: Mapping[str, StoredTensor],
        graph: ObjectGraph,
        class_name: str,
    ) -> None:
        self._path, self._class_name = path, class_name
        self._tensors = stored_tensors
        self._nodes = graph.nodes
        self._orders: dict[int, tuple[tuple[int, int], ...]] = {0: ()}
        self._paths = self._shortest_paths()
        self.keys = {
            index: attribute.key
            for index, node in enumerate(self._nodes)
            for attribute in node.attributes
            if attribute.name == ATTRIBUTE
        }
        self.claimed: set[int] = set()

    def _shortest_paths(self) -> dict[int, str]:
        """Return {node: shortest path from the root} of reachable nodes; fill `self._orders`."""
        paths = {0: ""} if self._nodes else {}
        # The list grows in the loop: a breadth-first search, so the first path is the shortest.
        pending = list(paths)
        for index in pending:
            stems: dict[str, int] = {}
            for name, child in self._nodes[index].children.items():
                stem, suffix = _numbered_name(name)
                kind = stems.setdefault(stem, len(stems))
                if child not in paths:
                    if not 0 <= child < len(self._nodes):
                        raise DataLossError(f"{self._path}: the object graph has no node {child}")
                    paths[child] = f"{paths[index]}/{name}".lstrip("/")
                    self._orders[child] = (*self._orders[index], (kind, suffix))
                    pending.append(child)
        return paths

    def name(self, index: int) -> str:
        """Return the name of a variable: its key without the suffix common to all keys."""
        return self.keys[index].removesuffix(SUFFIX)

    def value(self, index: int) -> StoredTensor:
        """Return the tensor of a variable's node; raise DataLossError if it is missing."""
        key = self.keys.get(index)
        if key is None or key not in self._tensors:
            raise DataLossError(f"{self._path}: the object graph names {key!r}, which has no value")
        return self._tensors[key]

    def is_counter(self, index: int) -> bool:
        """Return True for an integer scalar that belongs to no layer or optimizer."""
        tensor = self.value(index)
        name = self.name(index)
        dtypes = (*INTEGERS, *FLOATS) if name == GLOBAL_STEP else INTEGERS
        return tensor.dtype in dtypes and not tensor.shape and "/" not in name

    def full_name(self, index: int) -> str:
        """Return the name that a variable had in the program, without ":0"."""
        attributes = self._nodes[index].attributes
        names = [saved.full_name for saved in attributes if saved.name == ATTRIBUTE]
        return names[0].removesuffix(":0") if names else ""

    def unique_full_names(self, variables: set[str]) -> dict[str, str]:
        """Return {name in the checkpoint: full name} of variables.

        Variables without a full name, or with the full name of another variable, are left out.
        """
        pairs = [(self.name(node), self.full_name(node)) for node in self.keys]
        full_names = {name: full for name, full in pairs if name in variables and full}
        counts = Counter(full_names.values())
        return {name: full for name, full in full_names.items() if counts[full] == 1}

    def optimizer_nodes(self) -> list[int]:
        """Return the numbers of the nodes that are optimizers, the nearest to the root first.

        An optimizer has slots, or a child `beta1_power`, or children `iter` and `learning_rate`, or
        all children `MARKS` (Keras 3). A loss-scaling wrapper, with the child `inner_optimizer`, is
        left out.
        """
        marks = ({"beta1_power"}, {"iter", "learning_rate"}, set(MARKS))
        nodes = [(index, self._nodes[index]) for index in self._paths]
        return [
            index
            for index, node in nodes
            if node.slots or any(names <= node.children.keys() for names in marks)
            if INNER not in node.children
        ]

    def loss_scales(self, optimizers: Collection[int]) -> dict[int, dict[str, StoredTensor]]:
        """Return {node of an optimizer: state of its loss scale}.

        Nodes of loss-scale variables are added to `self.claimed`. Depending on the version, the
        nodes are children of a node `loss_scale`, of the optimizer, or of the wrapper around the
        optimizer.
        """
        scales: dict[int, dict[str, StoredTensor]] = {}
        for index in self._paths:
            children = self._nodes[index].children
            holder, names = index, OF_KERAS_3
            if INNER not in children:
                holder, names = children.get("loss_scale", index), OF_SCALES
            inner_nodes = [children[name] for name in (INNER, "base_optimizer") if name in children]
            optimizer_nodes = [node for node in (index, *inner_nodes) if node in optimizers]
            scale_nodes = {
                names[name]: child
                for name, child in self._nodes[holder].children.items()
                if name in names and child in self.keys
            }
            scale = if_valid({name: self.value(child) for name, child in scale_nodes.items()})
            if optimizer_nodes and scale:
                scales[optimizer_nodes[-1]] = scale
                self.claimed |= set(scale_nodes.values())
                if INNER in children:
                    # The wrapper's step count and learning rate have no effect.
                    self.claimed |= {child for child in children.values() if child in self.keys}
        return scales

    def sort_optimizer(self, index: int) -> FoundOptimizer:
        """Return the optimizer of a node; add the nodes of its variables to `self.claimed`."""
        node = self._nodes[index]
        if set(MARKS) <= node.children.keys():
            return self._sort_numbered(index)
        slots: dict[str, dict[str, StoredTensor]] = {}
        full_names: set[str] = set()
        for slot in node.slots:
            self.claimed.add(slot.slot)
            slots.setdefault(self.name_of_owner(slot.original), {})[slot.name] = self.value(
                slot.slot
            )
            full_names.add(self.full_name(slot.slot))
        scalars: dict[str, StoredTensor] = {}
        for name, child in node.children.items():
            if child in self.keys and child not in self.claimed and not self.value(child).shape:
                self.claimed.add(child)
                scalars[name] = self.value(child)
                full_names.add(self.full_name(child))
        kinds = sorted({kind for by_kind in slots.values() for kind in by_kind})
        return _identify_optimizer(self._paths[index], kinds, slots, scalars, full_names)

    def _sort_numbered(self, index: int) -> FoundOptimizer:
        """Return an optimizer of Keras 2.11 or later; add its variables to `self.claimed`."""
        node = self._nodes[index]
        variables = {name: child for name, child in node.children.items() if child in self.keys}
        slots = self._variables_in(node.children["_variables"])
        slots = [node for node in dict.fromkeys(slots) if node not in variables.values()]
        self.claimed |= {*slots, *variables.values()}
        trained, slot_nodes = node.children.get(TRAINED), {*slots}
        lists = {
            name: [self.value(node) for node in nodes]
            for name, child in node.children.items()
            if name not in (*MARKS, TRAINED)
            and (nodes := self._list_items(child))
            and slot_nodes.issuperset(nodes)
        }
        tensors = {name: self.value(child) for name, child in variables.items()}
        return sort_numbered(
            ListedVariables(
                self._paths[index],
                [(self.full_name(node), self.value(node)) for node in slots],
                {name: tensor for name, tensor in tensors.items() if not tensor.shape},
                self.full_name(node.children[MARKS[1]]).rpartition("/")[0],
                lists,
                None if trained is None else [*map(self._owner_of, self._variables_in(trained))],
            ),
            [self._owner_of(node) for node in self.keys if node in self._paths],
            self._class_name,
        )

    def _list_items(self, index: int) -> list[int]:
        """Return the nodes of the elements of a list in order; `index` is the list's node."""
        children = self._nodes[index].children
        return [children[name] for name in sorted(children, key=_numbered_name)]

    def _variables_in(self, index: int) -> list[int]:
        """Return the nodes of the variables among a list's elements, in order."""
        return [node for node in self._list_items(index) if node in self.keys]

    def _owner_of(self, index: int) -> Owner:
        """Return the description of a variable that may have slots."""
        order = self._orders.get(index, ())
        return Owner(self.name(index), self.full_name(index), self.value(index), order)

    def name_of_owner(self, index: int) -> str:
        """Return the name of a variable with a slot; raise DataLossError for other nodes."""
        if index not in self.keys:
            raise DataLossError(f"{self._path}: node {index} has a slot, but is no variable")
        return self.name(index)


def _numbered_name(name: str) -> tuple[str, int]:
    """Return (name without its final number, number); the number is -1 if there is none."""
    stem = name.rstrip("0123456789")
    return (stem, int(name[len(stem) :])) if 0 < len(name) - len(stem) < 19 else (name, -1)


def _identify_optimizer(
    path: str,
    kinds: list[str],
    slots: dict[str, dict[str, StoredTensor]],
    scalars: dict[str, StoredTensor],
    full_names: set[str],
) -> FoundOptimizer:
    """Return the optimizer with these slots and scalars.

    `kinds` are the kinds of slots, such as "m". `full_names` are the names of slots and scalars in
    the program, such as "Adam/w/m". If the class is ambiguous, `family` of the result is None.
    """
    is_keras = count_of(scalars.get("iter")) is not None
    families = _keras_families(kinds, scalars) if is_keras else with_slots(kinds, V1)
    matching = [family for family in families if _has_default_name(family, full_names, is_keras)]
    candidates = matching if len(matching) == 1 else families
    family = candidates[0] if len(candidates) == 1 else None
    evidence = [f"slots {', '.join(kinds)}"] if kinds else ["no slots"]
    arguments: dict[str, float] = {}
    if is_keras:
        values = {name: scalars[name].array().item() for name in sorted(scalars)}
        evidence += [f"{name}={scalar_value:.6g}" for name, scalar_value in values.items()]
        names = [*sorted(scalars.keys() - set(_KERAS_SCALARS)), "learning_rate", "decay"]
        arguments = {name: as_number(scalars[name]) for name in names if name in scalars}
    return FoundOptimizer(
        name=path,
        face="keras" if is_keras else "v1",
        family=family,
        candidates=tuple(dict.fromkeys(family.cls for family in candidates)),
        evidence=", ".join(evidence),
        slots=slots,
        scalars={name: scalar for name, scalar in scalars.items() if name not in arguments},
        hyperparameters={**(family.options if family else {}), **arguments},
        steps=count_of(scalars.get("iter")),
        title=family.title if family in matching else "",
    )


def _keras_families(kinds: list[str], scalars: dict[str, StoredTensor]) -> list[Family]:
    """Return the Keras families with these slots and scalars."""
    names = scalars.keys() - set(_KERAS_SCALARS)
    has_product = "momentum_cache" in scalars
    return [
        family
        for family in with_slots(kinds, KERAS)
        if names <= set(family.hypers) and has_product == bool(family.powers)
    ]


def _has_default_name(family: Family, full_names: set[str], is_keras: bool) -> bool:
    """Return True if variables are named after the default name of this family's class."""
    index = 0 if is_keras else -1
    return any(full_name.split("/")[index] == family.title for full_name in full_names)


def _with_hyperparameters(detected: FoundOptimizer, counters: Mapping[str, int]) -> FoundOptimizer:
    """Return a copy of a `v1` optimizer with betas and a step count from its beta powers.

    A Keras optimizer is returned unchanged. `counters` is {name: step count} of the variables that
    count steps and belong to no optimizer.
    """
    if detected.face == "keras":
        return detected
    powers = {
        name: scalar
        for name, scalar in detected.scalars.items()
        if name.endswith("_power") and scalar.dtype in FLOATS
    }
    scalars = {name: scalar for name, scalar in detected.scalars.items() if name not in powers}
    return with_steps(replace(detected, scalars=scalars), powers, counters)

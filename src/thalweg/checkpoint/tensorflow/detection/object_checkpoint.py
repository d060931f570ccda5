"""Sorts an object checkpoint (`tf.train.Checkpoint`): its graph says what belongs to what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from thalweg.checkpoint.tensorflow.detection.beta_powers import with_steps
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import (
    GLOBAL_STEP,
    SAVE_COUNTER,
    FoundOptimizer,
    TensorFlowCheckpoint,
)
from thalweg.checkpoint.tensorflow.detection.keras_objects import (
    MARKS,
    TRAINED,
    ListedVariables,
    sort_numbered,
)
from thalweg.checkpoint.tensorflow.detection.loss_scales import (
    OF_KERAS_3,
    OF_SCALES,
    if_usual,
    scaled_by,
)
from thalweg.checkpoint.tensorflow.detection.scalars import FLOATS, INTEGERS, as_number, count_of
from thalweg.checkpoint.tensorflow.detection.slot_families import KERAS, V1, Family, with_slots
from thalweg.checkpoint.tensorflow.detection.variable_order import Owner
from thalweg.errors import DataLossError

if TYPE_CHECKING:
    from thalweg._formats.bundle import Node, ObjectGraph
    from thalweg._formats.stored_tensor import StoredTensor

ATTRIBUTE = "VARIABLE_VALUE"
SUFFIX = f"/.ATTRIBUTES/{ATTRIBUTE}"
INNER = "inner_optimizer"  # of what scales the loss in Keras 3
_KERAS_SCALARS = ("learning_rate", "decay", "momentum_cache", "iter")


def sorted_objects(
    path: str, tensors: Mapping[str, StoredTensor], graph: ObjectGraph, class_name: str = ""
) -> TensorFlowCheckpoint:
    """Return the checkpoint that these tensors are.

    Args:
        path: Where it was read.
        tensors: What it holds.
        graph: Its objects.
        class_name: Optional. What an optimizer of Keras 3 is known to be, if its name does not say.

    Raises:
        DataLossError: The graph names a tensor that is not there, or a node that it does not have.
    """
    view = _View(path, tensors, graph, class_name)
    nodes = view.optimizer_nodes()
    scales = view.loss_scales(nodes)
    optimizers = [
        replace(found, loss_scale=scales[node], notes=(*found.notes, *scaled_by(scales[node])))
        if node in scales
        else found
        for node in nodes
        for found in [view.sort_optimizer(node)]
    ]
    free = [node for node in view.keys if node not in view.taken]
    counters = {view.name(node): view.value(node) for node in free if view.is_counter(node)}
    variables = {view.name(node): view.value(node) for node in free if not view.is_counter(node)}
    known = set(view.keys.values())
    counts = {
        name: count
        for name, value in counters.items()
        if name != SAVE_COUNTER and (count := count_of(value)) is not None
    }
    return TensorFlowCheckpoint(
        path=path,
        kind="object",
        variables=variables,
        optimizers=tuple(_with_hyperparameters(each, counts) for each in optimizers),
        counters=counters,
        unknown={name: value for name, value in tensors.items() if name not in known},
        other_names=view.other_names(set(variables)),
        source=dict(tensors),
        graph=graph,
    )


class _View:
    """An object graph, with the names of its nodes.

    Attributes:
        keys: For each node that is a variable, the key of its value.
        taken: The nodes that belong to optimizers.
    """

    def __init__(
        self, path: str, tensors: Mapping[str, StoredTensor], graph: ObjectGraph, class_name: str
    ) -> None:
        self._path, self._class_name = path, class_name
        self._tensors = tensors
        self._nodes = graph.nodes
        self._orders: dict[int, tuple[tuple[int, int], ...]] = {0: ()}
        self._places = self._shortest_paths()
        self.keys = {
            index: attribute.key
            for index, node in enumerate(self._nodes)
            for attribute in node.attributes
            if attribute.name == ATTRIBUTE
        }
        self.taken: set[int] = set()

    def _node_at(self, index: int) -> Node:
        if not 0 <= index < len(self._nodes):
            raise DataLossError(f"{self._path}: the object graph has no node {index}")
        return self._nodes[index]

    def _shortest_paths(self) -> dict[int, str]:
        """The shortest path to each node that can be reached, from the root."""
        places = {0: ""} if self._nodes else {}
        pending = list(places)
        for index in pending:
            stems: dict[str, int] = {}
            for name, child in self._node_at(index).children.items():
                stem, number = _numbered_name(name)
                kind = stems.setdefault(stem, len(stems))
                if child not in places:
                    self._node_at(child)
                    places[child] = f"{places[index]}/{name}".lstrip("/")
                    self._orders[child] = (*self._orders[index], (kind, number))
                    pending.append(child)
        return places

    def name(self, index: int) -> str:
        """Return the name of a variable: its key without the suffix that all keys have."""
        return self.keys[index].removesuffix(SUFFIX)

    def value(self, index: int) -> StoredTensor:
        key = self.keys.get(index)
        if key is None or key not in self._tensors:
            raise DataLossError(f"{self._path}: the object graph names {key!r}, which has no value")
        return self._tensors[key]

    def is_counter(self, index: int) -> bool:
        value = self.value(index)
        name, numbers = self.name(index), INTEGERS
        if name == GLOBAL_STEP:
            numbers = (*INTEGERS, *FLOATS)
        return value.dtype in numbers and not value.shape and "/" not in name

    def full_name(self, index: int) -> str:
        """Return the name that a variable had in the program, without ":0"."""
        names = [
            each.full_name for each in self._node_at(index).attributes if each.name == ATTRIBUTE
        ]
        return names[0].removesuffix(":0") if names else ""

    def other_names(self, variables: set[str]) -> dict[str, str]:
        """Return the full names of variables that no other one has."""
        full = {self.name(node): self.full_name(node) for node in self.keys}
        full = {name: other for name, other in full.items() if name in variables and other}
        count = Counter(full.values())
        return {name: other for name, other in full.items() if count[other] == 1}

    def optimizer_nodes(self) -> list[int]:
        """Return the nodes that have slots, or are otherwise known to be optimizers."""
        return [
            index
            for index in self._places
            if self._nodes[index].slots or _is_optimizer(self._nodes[index].children)
            if INNER not in self._nodes[index].children  # which only scales the loss
        ]

    def loss_scales(self, optimizers: Collection[int]) -> dict[int, dict[str, StoredTensor]]:
        """Return the state of the loss scales around optimizers, by their nodes, and mark it as
        taken.

        A scale is beside the optimizer that it is around (`tf.train.experimental`, TensorFlow 2.2),
        among its own variables (later ones), or has the optimizer inside (Keras 3).
        """
        found: dict[int, dict[str, StoredTensor]] = {}
        for index in self._places:
            children = self._node_at(index).children
            holder, names = index, OF_KERAS_3
            if INNER not in children:
                holder, names = children.get("loss_scale", index), OF_SCALES
            inside = [children[name] for name in (INNER, "base_optimizer") if name in children]
            owners = [each for each in (index, *inside) if each in optimizers]
            own = {
                names[name]: child
                for name, child in self._node_at(holder).children.items()
                if name in names and child in self.keys
            }
            scale = if_usual({name: self.value(child) for name, child in own.items()})
            if owners and scale:
                found[owners[-1]] = scale
                self.taken |= set(own.values())
                if INNER in children:  # its own count of steps and learning rate mean nothing
                    self.taken |= {child for child in children.values() if child in self.keys}
        return found

    def sort_optimizer(self, index: int) -> FoundOptimizer:
        """Return the optimizer of a node; its variables are `taken` from now on."""
        node = self._node_at(index)
        if set(MARKS) <= node.children.keys():
            return self._sort_numbered(index)
        slots: dict[str, dict[str, StoredTensor]] = {}
        titles: set[str] = set()
        for slot in node.slots:
            self.taken.add(slot.slot)
            slots.setdefault(self.name_of_owner(slot.original), {})[slot.name] = self.value(
                slot.slot
            )
            titles.add(self.full_name(slot.slot))
        scalars: dict[str, StoredTensor] = {}
        for name, child in node.children.items():
            if child in self.keys and child not in self.taken and not self.value(child).shape:
                self.taken.add(child)
                scalars[name] = self.value(child)
                titles.add(self.full_name(child))
        kinds = sorted({kind for own in slots.values() for kind in own})
        return _identify_optimizer(self._places[index], kinds, slots, scalars, titles)

    def _sort_numbered(self, index: int) -> FoundOptimizer:
        """One of Keras 2.11 and later."""
        node = self._node_at(index)
        own = {name: child for name, child in node.children.items() if child in self.keys}
        slots = self._variables_in(node.children["_variables"])
        slots = [each for each in dict.fromkeys(slots) if each not in own.values()]
        self.taken |= {*slots, *own.values()}
        trained, known = node.children.get(TRAINED), {*slots}
        lists = {
            name: [self.value(each) for each in listed]
            for name, child in node.children.items()
            if name not in (*MARKS, TRAINED)
            and (listed := self._list_items(child))
            and known.issuperset(listed)
        }
        return sort_numbered(
            ListedVariables(
                self._places[index],
                [(self.full_name(each), self.value(each)) for each in slots],
                {n: value for n, child in own.items() if not (value := self.value(child)).shape},
                self.full_name(node.children[MARKS[1]]).rpartition("/")[0],
                lists,
                None if trained is None else [*map(self._owner_of, self._variables_in(trained))],
            ),
            [self._owner_of(each) for each in self.keys if each in self._places],
            self._class_name,
        )

    def _list_items(self, index: int) -> list[int]:
        """What a list holds, in its order."""
        children = self._node_at(index).children
        return [children[name] for name in sorted(children, key=_numbered_name)]

    def _variables_in(self, index: int) -> list[int]:
        """Those of them that are variables."""
        return [each for each in self._list_items(index) if each in self.keys]

    def _owner_of(self, index: int) -> Owner:
        order = self._orders.get(index, ())
        return Owner(self.name(index), self.full_name(index), self.value(index), order)

    def name_of_owner(self, index: int) -> str:
        if index not in self.keys:
            raise DataLossError(f"{self._path}: node {index} has a slot, but is no variable")
        return self.name(index)


def _numbered_name(name: str) -> tuple[str, int]:
    """A name and the number that it ends in, -1 if it does not."""
    stem = name.rstrip("0123456789")
    return (stem, int(name[len(stem) :])) if 0 < len(name) - len(stem) < 19 else (name, -1)


def _is_optimizer(children: Mapping[str, int]) -> bool:
    known = ({"beta1_power"}, {"iter", "learning_rate"}, set(MARKS))
    return any(each <= children.keys() for each in known)


def _identify_optimizer(
    place: str,
    kinds: list[str],
    slots: dict[str, dict[str, StoredTensor]],
    scalars: dict[str, StoredTensor],
    titles: set[str],
) -> FoundOptimizer:
    is_keras = count_of(scalars.get("iter")) is not None
    families = _keras_families(kinds, scalars) if is_keras else with_slots(kinds, V1)
    named = [family for family in families if _has_default_name(family, titles, is_keras)]
    chosen = named if len(named) == 1 else families
    family = chosen[0] if len(chosen) == 1 else None
    shown = [f"slots {', '.join(kinds)}"] if kinds else ["no slots"]
    if is_keras:
        shown += [f"{name}={value.array().item():.6g}" for name, value in sorted(scalars.items())]
    hypers = _keras_hypers(scalars) if is_keras else {}
    return FoundOptimizer(
        name=place,
        face="keras" if is_keras else "v1",
        family=family,
        candidates=tuple(dict.fromkeys(each.cls for each in chosen)),
        evidence=", ".join(shown),
        slots=slots,
        scalars={name: value for name, value in scalars.items() if name not in hypers},
        hyperparameters={**(family.options if family else {}), **hypers},
        steps=count_of(scalars.get("iter")),
        title=family.title if family in named else "",
    )


def _keras_families(kinds: list[str], scalars: dict[str, StoredTensor]) -> list[Family]:
    """The optimizers of Keras with these slots and scalars."""
    own = scalars.keys() - set(_KERAS_SCALARS)
    has_product = "momentum_cache" in scalars
    return [
        family
        for family in with_slots(kinds, KERAS)
        if own <= set(family.hypers) and has_product == bool(family.powers)
    ]


def _keras_hypers(scalars: dict[str, StoredTensor]) -> dict[str, float]:
    own = sorted(scalars.keys() - set(_KERAS_SCALARS))
    names = [*own, *(name for name in ("learning_rate", "decay") if name in scalars)]
    return {name: as_number(scalars[name]) for name in names}


def _has_default_name(family: Family, titles: set[str], is_keras: bool) -> bool:
    """Return whether variables are called as those of this optimizer are, if it was given no
    name.
    """
    if is_keras:
        return any(title.split("/")[0] == family.title for title in titles)
    return any(title.rpartition("/")[2] == family.title for title in titles)


def _with_hyperparameters(found: FoundOptimizer, counters: Mapping[str, int]) -> FoundOptimizer:
    if found.face == "keras":
        return found
    powers = {
        name: value
        for name, value in found.scalars.items()
        if name.endswith("_power") and value.dtype in FLOATS
    }
    rest = {name: value for name, value in found.scalars.items() if name not in powers}
    return with_steps(replace(found, scalars=rest), powers, counters)

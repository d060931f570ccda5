"""Members of an object checkpoint: the objects reachable from a root by names of attributes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from thalweg._base.context_managers import ContextSetting, Sections
from thalweg._base.locks import Guard
from thalweg._base.showing import show_value
from thalweg._core.atomic_section import drain
from thalweg._core.trackable import Trackable, TrackableSlots
from thalweg._formats.bundle import Node, ObjectGraph, SavedAttribute, SlotVariable
from thalweg._graph import GraphVariable, handle_of, is_symbolic
from thalweg.errors import InvalidTypeError
from thalweg.variable import name_of

# The attribute of an object that is a variable.
VALUE = "VARIABLE_VALUE"
SUFFIX = f"/.ATTRIBUTES/{VALUE}"
# Largest number of digits of an index in a list.
_DIGITS = 9
_CONTAINERS = (Trackable, torch.nn.Module, list, tuple, dict)


@dataclass
class ObjectMember:
    """Object of a checkpoint, reachable from a root object.

    Attributes:
        path: Attribute names from the root to the object, joined by "/".
        held: The object whose state is saved: the object itself, or its substitute (see `held_by`).
        is_variable: True if `held` is a variable.
        children: {name: index of a child in the list of members}.
        slots: (index of the variable, slot's name, index of the slot) for slots of an optimizer.
    """

    path: str
    held: Any
    is_variable: bool
    children: dict[str, int] = field(default_factory=dict[str, int])
    slots: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])

    @property
    def key(self) -> str:
        """The name of its value in a checkpoint."""
        return self.path + SUFFIX


def is_trackable(candidate: object) -> bool:
    """Return True if a value can be part of a checkpoint."""
    if isinstance(candidate, GraphVariable):
        return True
    return isinstance(candidate, (Tensor, *_CONTAINERS)) and not is_symbolic(candidate)


def check_trackable(candidate: object, path: str) -> None:
    """Raise InvalidTypeError unless `candidate` can be part of a checkpoint; name `path`."""
    if not is_trackable(candidate):
        kind = type(candidate).__name__
        hint = " Make it a thalweg.Variable." if isinstance(candidate, bool | int | float) else ""
        raise InvalidTypeError(
            f"'{path}' is a {kind}, which no checkpoint holds: variables, tensors, modules,"
            f" optimizers, other Checkpoints, and lists and dicts of them can be saved.{hint}"
        )


def children_of(owner: object) -> dict[str, Any]:
    """Return {name: child} of an object.

    Children of a module are submodules, parameters and persistent buffers.
    """
    if isinstance(owner, Trackable):
        return owner._trackable_children(save_type="checkpoint")
    if isinstance(owner, torch.nn.Module):
        excluded = owner._non_persistent_buffers_set
        buffers = {name: child for name, child in owner._buffers.items() if name not in excluded}
        # A module registers an absent parameter or submodule as None.
        candidates = {**owner._modules, **owner._parameters, **buffers}
        return {name: child for name, child in candidates.items() if child is not None}
    if isinstance(owner, dict):
        return {_check_key(name): child for name, child in owner.items()}
    if isinstance(owner, list | tuple):
        return {str(index): child for index, child in enumerate(owner)}
    return {}


def _check_key(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidTypeError(
            f"A dict in a checkpoint has strings as keys, not {show_value(name)}."
        )
    return name


def child_of(owner: object, name: str) -> Any:
    """Return the child of `owner` named `name`, or None."""
    if isinstance(owner, Trackable):
        return owner._lookup_dependency(name)
    if isinstance(owner, list | tuple):
        # Names come from files, and Python raises ValueError for thousands of digits.
        is_index = name.isdecimal() and len(name) <= _DIGITS and int(name) < len(owner)
        return owner[int(name)] if is_index else None
    if isinstance(owner, dict):
        return owner.get(name)
    if isinstance(owner, torch.nn.Module) and name not in owner._non_persistent_buffers_set:
        tables: object = (owner._buffers, owner._parameters, owner._modules)
        return next((table[name] for table in tables if table.get(name) is not None), None)
    return None


def held_by(value: Any, graph: Any) -> Any:
    """Return the object whose state is saved for `value`, a child of a checkpoint.

    For a `Trackable`, return `value._checkpointed()`: for example the optimizer that it wraps. For
    a parameter or buffer with a variable in `graph`, return the variable. Return any other object
    unchanged.
    """
    if isinstance(value, Trackable):
        return value._checkpointed()
    value = handle_of(value)
    if graph is not None and isinstance(value, Tensor) and not is_symbolic(value):
        return graph.stand_ins.get(id(value), (None, value))[1]
    return value


def is_variable(candidate: object) -> bool:
    """Return True if an object is a tensor or a variable of a graph."""
    return isinstance(candidate, Tensor | GraphVariable)


def members_of(root: object, graph: object = None) -> list[ObjectMember]:
    """Return all objects reachable from a root in breadth-first order, then all slots.

    Args:
        root: The root, which becomes the first member.
        graph: The graph whose variables replace torch's parameters, or None.

    Raises:
        InvalidTypeError: An object cannot be part of a checkpoint; the message names it.
    """
    members: list[ObjectMember] = []
    indices: dict[int, int] = {}

    def index_of(child: object, path: str) -> int:
        check_trackable(child, path)
        member_object = held_by(child, graph)
        # By identity, since `==` of tensors compares elements. Objects may refer to each other.
        if id(member_object) not in indices:
            indices[id(member_object)] = len(members)
            members.append(ObjectMember(path, member_object, is_variable(member_object)))
            pending.append((child, members[-1]))
        return indices[id(member_object)]

    pending: deque[tuple[Any, ObjectMember]] = deque()
    index_of(root, "")
    while pending:
        owner, member = pending.popleft()
        for name, child in children_of(owner).items():
            path = f"{member.path}/{_escape_name(name)}".removeprefix("/")
            member.children[name] = index_of(child, path)
    _add_slots(members, indices)
    return members


def _add_slots(members: list[ObjectMember], indices: dict[int, int]) -> None:
    """Append the slots of all optimizers in `members` to `members`, in place.

    Add the slots to `indices`, {id of an object: index in `members`}, and to the attribute `slots`
    of each optimizer's member.
    """
    variables = [(index, member) for index, member in enumerate(members) if member.is_variable]
    for keeper in [member for member in members if isinstance(member.held, TrackableSlots)]:
        keeper.held._slots.check_whole("in a checkpoint of objects")
        for index, var in variables:
            for name, slot in keeper.held._slots.all_of(var.held).items():
                path = f"{var.path}/.OPTIMIZER_SLOT/{keeper.path}/{_escape_name(name)}"
                if id(slot) not in indices:
                    indices[id(slot)] = len(members)
                    members.append(ObjectMember(path, slot, True))
                keeper.slots.append((index, name, indices[id(slot)]))


def _escape_name(name: str) -> str:
    """Return a name without "/", escaped as in TensorFlow's paths."""
    return name.replace(".", "..").replace("/", ".S")


def optimizers_in(members: Iterable[ObjectMember]) -> list[TrackableSlots]:
    """Return the optimizers among members, in the order in which their locks are taken."""
    optimizers = [member.held for member in members if isinstance(member.held, TrackableSlots)]
    # A common order: two threads that lock the same optimizers do not wait for each other.
    return sorted(optimizers, key=id)


def hold_steps(optimizers: Iterable[TrackableSlots]) -> ContextSetting:
    """Return a context manager that holds the locks of optimizers, so that none takes a step."""
    # Not an `ExitStack`: an interruption inside of its Python code would leave locks taken.
    return ContextSetting(partial(_enter_locks, [optimizer._locked() for optimizer in optimizers]))


def _enter_locks(locks: list[Guard]) -> Sections:
    # Only locks in this list are released, if the wait for a further lock is interrupted.
    held: list[Guard] = []
    taken = map(methodcaller("__enter__"), locks)
    released = map(methodcaller("__exit__", None, None, None), held)
    return [partial(held.extend, compress(locks, taken))], [partial(drain, released)]


def graphs_of(members: Iterable[ObjectMember]) -> list[Any]:
    """Return the graphs whose variables are among members."""
    graphs = (member.held.graph for member in members if isinstance(member.held, GraphVariable))
    return list({id(graph): graph for graph in graphs}.values())


def describe_members(members: Iterable[ObjectMember]) -> ObjectGraph:
    """Return the members as an `ObjectGraph`, the description in a checkpoint's file."""
    nodes: list[Node] = []
    for member in members:
        values = ()
        if member.is_variable:
            values = (SavedAttribute(VALUE, name_of(member.held).split(":")[0], member.key),)
        slots = tuple(SlotVariable(*slot) for slot in member.slots)
        nodes.append(Node(member.children, values, slots))
    return ObjectGraph(tuple(nodes))

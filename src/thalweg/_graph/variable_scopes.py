"""`variable_scope`: name prefixes and default arguments of `get_variable`."""

from __future__ import annotations

import contextlib
import enum
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from thalweg._base.showing import show_value
from thalweg._graph.collections import GraphKeys
from thalweg._graph.default_graph import get_default_graph
from thalweg._graph.graph import Graph
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import Constraint

Getter = Callable[..., Any]


class Reuse(enum.Enum):
    """Value of `reuse` that finds a variable or creates it. True only finds, None only creates."""

    AUTO = 1


AUTO_REUSE = Reuse.AUTO


@dataclass
class VariableScope:
    """Name prefix and default arguments of `get_variable`.

    Attributes:
        name: The prefix of variables' names, without a last "/"; "" outside of all scopes.
        reuse: True: variables must exist; None: they must not; AUTO_REUSE: they may.
        initializer: The default initializer.
        regularizer: The default regularizer.
        constraint: The default constraint.
        custom_getter: None, or `custom_getter(getter, name, ...)`, see `variable_scope`.
        partitioner: The default partitioner, or None.
        dtype: The default dtype.
        use_resource: The default `use_resource`, or None.
        original_name_scope: The name scope of the first entry; ends with "/".
    """

    name: str = ""
    reuse: Any = None
    initializer: Any = None
    regularizer: Any = None
    constraint: Constraint | None = None
    custom_getter: Getter | None = None
    partitioner: Any = None
    dtype: Any = torch.float32
    use_resource: bool | None = None
    original_name_scope: str = ""

    def reuse_variables(self) -> None:
        """Require that variables exist from now on."""
        self.reuse = True

    def set_initializer(self, initializer: object) -> None:
        """Set the default initializer of variables made from now on."""
        self.initializer = initializer

    def set_regularizer(self, regularizer: object) -> None:
        """Set the default regularizer of variables made from now on."""
        self.regularizer = regularizer

    def set_custom_getter(self, custom_getter: Getter | None) -> None:
        """Set the custom getter that `get_variable` calls."""
        self.custom_getter = custom_getter

    def set_partitioner(self, partitioner: object) -> None:
        """Set the default partitioner of variables made from now on."""
        check_callable(partitioner, "partitioner")
        self.partitioner = partitioner

    def set_dtype(self, dtype: object) -> None:
        """Set the default dtype of variables made from now on."""
        self.dtype = dtype

    def set_use_resource(self, use_resource: bool | None) -> None:
        """Set the default of `use_resource` for new variables."""
        self.use_resource = use_resource

    def get_collection(self, name: str) -> list[Any]:
        """Return the items of a collection of the default graph that are named below this scope."""
        return get_default_graph().get_collection(name, f"{self.name}/" if self.name else None)

    def global_variables(self) -> list[Any]:
        """Return the variables below this scope in GLOBAL_VARIABLES."""
        return self.get_collection(GraphKeys.GLOBAL_VARIABLES)

    def local_variables(self) -> list[Any]:
        """Return the variables below this scope in LOCAL_VARIABLES."""
        return self.get_collection(GraphKeys.LOCAL_VARIABLES)

    def trainable_variables(self) -> list[Any]:
        """Return the variables below this scope in TRAINABLE_VARIABLES."""
        return self.get_collection(GraphKeys.TRAINABLE_VARIABLES)


@dataclass
class _ScopeState:
    """Variable scope of one thread in one graph.

    Attributes:
        opened: {full name: number of times that this scope was opened}, since the enclosing scope
            was opened.
    """

    scope: VariableScope = field(default_factory=VariableScope)
    opened: dict[str, int] = field(default_factory=dict)


class _Current(threading.local):
    """Variable scopes of this thread."""

    def __init__(self) -> None:
        # Weak, so that a thread does not keep its graphs alive.
        self._states: weakref.WeakKeyDictionary[Graph, _ScopeState] = weakref.WeakKeyDictionary()

    def state_in(self, graph: Graph) -> _ScopeState:
        """Return the state of this thread in a graph."""
        return self._states.setdefault(graph, _ScopeState())


_current = _Current()


def get_variable_scope() -> VariableScope:
    """Return the innermost scope of the default graph."""
    return _current.state_in(get_default_graph()).scope


@contextlib.contextmanager
def variable_scope(
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    values: object = None,
    initializer: object = None,
    regularizer: object = None,
    caching_device: object = None,
    partitioner: object = None,
    custom_getter: Getter | None = None,
    reuse: object = None,
    dtype: object = None,
    use_resource: bool | None = None,
    constraint: Constraint | None = None,
    auxiliary_name_scope: bool = True,
) -> Iterator[VariableScope]:
    """Return a context manager that opens a variable scope and yields the `VariableScope`.

    Args:
        name_or_scope: A name below the current scope, a scope to enter again, or None.
        default_name: The name if `name_or_scope` is None; made unique in the enclosing scope.
        values: Ignored.
        initializer, regularizer, partitioner: Optional defaults for `get_variable`.
        caching_device: Ignored.
        custom_getter: Optional. `get_variable` returns `custom_getter(getter, name, ...)`.
            `getter(name, ...)` finds or creates a variable, or calls an outer scope's getter.
        dtype, use_resource, constraint: Optional defaults for `get_variable`.
        reuse: True, AUTO_REUSE, or None to inherit the outer scope's value.
        auxiliary_name_scope: True to open a name scope, too.

    Raises:
        InvalidTypeError: There is neither a name nor a default, or the name is of another type.
        InvalidArgumentError: The custom getter or the partitioner is not callable.
    """
    _check_scope_arguments(name_or_scope, default_name, partitioner, custom_getter)
    graph = get_default_graph()
    state = _current.state_in(graph)
    outer = state.scope
    is_reentered = isinstance(name_or_scope, VariableScope)
    scope, last_name = _copy_scope(state, name_or_scope, default_name)
    # As in TensorFlow, False does not end the reuse of an outer scope.
    scope.reuse = reuse or scope.reuse
    defaults = {"initializer": initializer, "regularizer": regularizer, "partitioner": partitioner}
    defaults |= {"dtype": dtype, "constraint": constraint, "use_resource": use_resource}
    scope = replace(scope, **{key: value for key, value in defaults.items() if value is not None})
    scope.custom_getter = _nest_getters(custom_getter, scope.custom_getter)
    state.opened[scope.name] = state.opened.get(scope.name, 0) + 1
    previous_counts = dict(state.opened)
    # Re-entering the outermost scope, which has no name, opens no name scope.
    has_name_scope = auxiliary_name_scope and last_name
    with graph.name_scope(last_name) if has_name_scope else contextlib.nullcontext():
        if not is_reentered:
            scope.original_name_scope = graph.scope
        state.scope = scope
        try:
            yield scope
        finally:
            state.scope = outer
            state.opened = previous_counts if is_reentered else _counts_outside(state, scope.name)


def _nest_getters(custom: Getter | None, outer: Getter | None) -> Getter | None:
    """Return a getter that calls `custom` around `outer`; either may be None."""
    if custom is None or outer is None:
        return custom or outer
    return lambda getter, *args, **kwargs: custom(partial(outer, getter), *args, **kwargs)


def check_callable(function: object, argument: str) -> None:
    """Raise InvalidArgumentError unless an optional argument is None or callable."""
    if function is not None and not callable(function):
        raise InvalidArgumentError(
            f"A {argument} is a function, and this is not callable: {show_value(function)}."
        )


def _check_scope_arguments(
    name_or_scope: object, default_name: object, partitioner: object, custom_getter: object
) -> None:
    """Raise an error if an argument of `variable_scope` has a wrong type."""
    if not isinstance(name_or_scope, str | VariableScope | None):
        raise InvalidTypeError(
            f"name_or_scope must be a string or a VariableScope, not {show_value(name_or_scope)}."
        )
    check_callable(partitioner, "partitioner")
    check_callable(custom_getter, "custom_getter")
    if name_or_scope is None and default_name is None:
        raise InvalidTypeError("If default_name is None then name_or_scope is required")


def _counts_outside(state: _ScopeState, name: str) -> dict[str, int]:
    """Return `state.opened` without the scopes inside of `name`."""
    prefix = f"{name}/"
    return {key: count for key, count in state.opened.items() if not key.startswith(prefix)}


def _copy_scope(
    state: _ScopeState, name_or_scope: str | VariableScope | None, default_name: str | None
) -> tuple[VariableScope, str]:
    """Return (copy of the scope to enter, last part of its name)."""
    if isinstance(name_or_scope, VariableScope):
        return replace(name_or_scope), name_or_scope.name.rpartition("/")[2]
    outer = state.scope
    last_name = name_or_scope or _unused_name(state, default_name or "")
    return replace(outer, name=f"{outer.name}/{last_name}" if outer.name else last_name), last_name


def _unused_name(state: _ScopeState, name: str) -> str:
    """Return `name`, with a number added if a scope of this name was opened."""
    prefix = f"{state.scope.name}/" if state.scope.name else ""
    candidates = itertools.chain([name], (f"{name}_{suffix}" for suffix in itertools.count(1)))
    return next(candidate for candidate in candidates if prefix + candidate not in state.opened)

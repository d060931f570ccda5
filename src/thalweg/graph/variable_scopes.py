"""`variable_scope` and `get_variable`: variables that are found again by name."""

from __future__ import annotations

import contextlib
import enum
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.graph.collections import GraphKeys
from thalweg.graph.creation import create
from thalweg.graph.default import get_default_graph
from thalweg.graph.graph import Graph
from thalweg.graph.initializers import GlorotUniform, Zeros
from thalweg.graph.nodes import SymbolicTensor
from thalweg.graph.variables import GraphVariable
from thalweg.variable import Constraint, as_dtype, dtype_name


class Reuse(enum.Enum):
    """What `get_variable` does besides making (None, False) and finding (True)."""

    AUTO = 1


AUTO_REUSE = Reuse.AUTO


@dataclass
class VariableScope:
    """Where `get_variable` is asked, and its defaults there.

    Attributes:
        name: What variables' names begin with, without a last "/"; "" outside of all scopes.
        reuse: True: variables must exist; None: they must not; AUTO_REUSE: they may.
        initializer: The default initializer.
        regularizer: The default regularizer.
        constraint: The default constraint.
        dtype: The default dtype.
        original_name_scope: The name scope that was opened with it; ends with "/".
    """

    name: str = ""
    reuse: Any = None
    initializer: Any = None
    regularizer: Any = None
    constraint: Constraint | None = None
    dtype: Any = torch.float32
    original_name_scope: str = ""

    def reuse_variables(self) -> None:
        """From now on variables must exist."""
        self.reuse = True


class _Current(threading.local):
    """The innermost scope of each graph in this thread."""

    def __init__(self) -> None:
        self.scopes: weakref.WeakKeyDictionary[Graph, VariableScope] = weakref.WeakKeyDictionary()


_current = _Current()


def get_variable_scope() -> VariableScope:
    """The innermost scope of the default graph."""
    return _current.scopes.setdefault(get_default_graph(), VariableScope())


@contextlib.contextmanager
def variable_scope(
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    values: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    reuse: Any = None,
    dtype: Any = None,
    constraint: Constraint | None = None,
    *,
    use_resource: bool | None = None,
    caching_device: Any = None,
) -> Iterator[VariableScope]:
    """Let the names of variables begin with a name, in the `with` block.

    Args:
        name_or_scope: A name below the current scope, a scope to enter again, or None.
        default_name: Stands in for None, made unique among the variables' scopes.
        values: Ignored.
        initializer: Optional; the default of `get_variable`, as are the next three.
        regularizer: Optional.
        reuse: True, AUTO_REUSE, or None to inherit it.
        dtype: Optional.
        constraint: Optional.
        use_resource: Ignored, as is `caching_device`; see `Variable`.

    Raises:
        InvalidArgumentError: There is neither a name nor a default.
    """
    graph, outer = get_default_graph(), get_variable_scope()
    if name_or_scope is None and default_name is None:
        raise InvalidArgumentError("If default_name is None then name_or_scope is required")
    if isinstance(name_or_scope, VariableScope):
        scope, title = replace(name_or_scope), name_or_scope.name.rpartition("/")[2]
    else:
        title = name_or_scope or _unused(graph, outer, default_name or "")
        scope = replace(outer, name=f"{outer.name}/{title}" if outer.name else title)
    scope.reuse = reuse or scope.reuse or outer.reuse
    given = {"initializer": initializer, "regularizer": regularizer}
    given |= {"dtype": dtype, "constraint": constraint}
    scope = replace(scope, **{key: value for key, value in given.items() if value is not None})
    with graph.name_scope(title or None) as opened:
        scope.original_name_scope = opened
        _current.scopes[graph] = scope
        try:
            yield scope
        finally:
            _current.scopes[graph] = outer


def _unused(graph: Graph, outer: VariableScope, name: str) -> str:
    taken = {key.rpartition("/")[0] for key in graph.variable_store}
    prefix = f"{outer.name}/" if outer.name else ""

    def is_taken(title: str) -> bool:
        full = prefix + title
        return any(key == full or key.startswith(f"{full}/") for key in taken)

    candidates = (f"{name}_{number}" for number in range(1, len(taken) + 2))
    return next(title for title in (name, *candidates) if not is_taken(title))


def get_variable(
    name: str,
    shape: Sequence[int] | int | None = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Callable[[Any], Any] | None = None,
    trainable: bool = True,
    collections: Iterable[str] | None = None,
    validate_shape: bool = True,
    constraint: Constraint | None = None,
    *,
    use_resource: bool | None = None,
    caching_device: Any = None,
    synchronization: Any = None,
    aggregation: Any = None,
) -> GraphVariable:
    """The variable of that name in the current variable scope, found or made.

    Args:
        name: Below the variable scope; name scopes do not matter.
        shape: Required, unless the initializer is a value.
        dtype: By default that of the scope, float32.
        initializer: A value, or a callable that takes a shape and a dtype. By default that of the
            scope, else Glorot's uniform distribution for floats and zeros for the rest.
        regularizer: Optional. What it returns for the variable goes to REGULARIZATION_LOSSES.
        trainable: As for `Variable`, like all that follow.
        collections: Optional.
        validate_shape: Optional.
        constraint: Optional.
        use_resource: Ignored, as is `caching_device`.
        synchronization, aggregation: As for `Variable`.

    Raises:
        InvalidArgumentError: The variable exists and the scope does not reuse, or the other way
            round, or it exists with another shape.
        InvalidTypeError: It exists with another dtype.
    """
    graph, scope = get_default_graph(), get_variable_scope()
    full = f"{scope.name}/{name}" if scope.name else name
    kind = None if dtype is None else as_dtype(dtype)
    if isinstance(shape, int):
        shape = (shape,)
    found = graph.variable_store.get(full)
    if found is not None:
        return _reused(found, full, scope, shape, kind)
    if scope.reuse is True:
        raise InvalidArgumentError(
            f"Variable {full} does not exist, or was not created with get_variable(). Did you mean "
            "to set reuse=AUTO_REUSE in variable_scope()?"
        )
    kind = kind or as_dtype(scope.dtype)
    start = scope.initializer if initializer is None else initializer
    if start is None:
        start = GlorotUniform() if kind.is_floating_point else Zeros()
    is_value = not callable(start)
    if isinstance(start, type):
        start = start()
    if shape is None and not is_value:
        raise InvalidArgumentError(
            f"Shape of a new variable ({full}) must be fully defined, but instead was None."
        )
    if is_value and shape is not None:
        raise InvalidArgumentError("If initializer is a constant, do not specify shape.")
    is_typed = isinstance(start, (torch.Tensor, SymbolicTensor)) or hasattr(start, "dtype")
    variable = create(
        graph,
        start,
        full,
        trainable=trainable,
        collections=collections,
        dtype=None if is_value and is_typed and dtype is None else kind,
        constraint=constraint or scope.constraint,
        shape=shape,
        validate_shape=validate_shape,
        absolute=True,
    )
    graph.variable_store[full] = variable
    penalty = scope.regularizer if regularizer is None else regularizer
    loss = None if penalty is None else penalty(variable)
    if loss is not None:
        graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)
    return variable


def _reused(
    found: GraphVariable,
    full: str,
    scope: VariableScope,
    shape: Sequence[int] | None,
    kind: torch.dtype | None,
) -> GraphVariable:
    if not scope.reuse:
        raise InvalidArgumentError(
            f"Variable {full} already exists, disallowed. Did you mean to set reuse=True or "
            f"reuse=AUTO_REUSE in variable_scope()? It was made at {found.op.origin}."
        )
    if shape is not None and found.shape is not None and not found.shape.accepts(tuple(shape)):
        raise InvalidArgumentError(
            f"Trying to share variable {full}, but specified shape {tuple(shape)} and found shape "
            f"{tuple(found.shape)}."
        )
    if kind is not None and found.dtype is not None and kind != found.dtype:
        raise InvalidTypeError(
            f"Trying to share variable {full}, but specified dtype {dtype_name(kind)} and found "
            f"dtype {dtype_name(found.dtype)}."
        )
    return found

"""`get_variable`: finds or creates variables by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from thalweg._base.execution_context import current_session, executing_eagerly
from thalweg._base.static_shape import Shape
from thalweg._graph.collections import GraphKeys
from thalweg._graph.default_graph import get_default_graph
from thalweg._graph.graph import Graph
from thalweg._graph.initializers import as_initializer
from thalweg._graph.partitioned import get_partitioned
from thalweg._graph.variable_creation import create_variable
from thalweg._graph.variable_scopes import (
    Getter,
    check_callable,
    get_variable_scope,
    variable_scope,
)
from thalweg._graph.variables import GraphVariable, needs_arguments
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import Constraint, as_dtype, dtype_name, is_trained, to_tensor
from thalweg.variable import Variable as EagerVariable


def get_variable(
    name: str,
    shape: Sequence[int] | int | None = None,
    dtype: object = None,
    initializer: object = None,
    regularizer: Callable[[Any], object] | None = None,
    trainable: bool | None = None,
    collections: Iterable[str] | None = None,
    validate_shape: bool = True,
    constraint: Constraint | None = None,
    *,
    use_resource: bool | None = None,
    caching_device: object = None,
    synchronization: object = None,
    aggregation: object = None,
    partitioner: object = None,
    custom_getter: Getter | None = None,
) -> Any:
    """Find or create the variable `name` of the current variable scope.

    If the scope's `reuse` is True, the variable must exist; if None or False, it must be new.
    AUTO_REUSE accepts both. In eager mode each call creates a new `thalweg.Variable`, without
    collections.

    Args:
        name: The name inside the variable scope; name scopes are ignored.
        shape: Required, unless the initializer is a value or a callable without arguments.
        dtype: By default the scope's dtype, float32 at first.
        initializer: A value, `initializer(shape, dtype)` or `initializer()`. By default the
            scope's initializer, else Glorot's uniform distribution for floats, else zeros.
        regularizer: Optional. `regularizer(variable)` returns a loss, which is added to
            REGULARIZATION_LOSSES.
        trainable, collections, validate_shape: As for `Variable`.
        constraint: As for `Variable`; by default the scope's constraint.
        use_resource: As for `Variable`; by default the scope's value.
        caching_device: Ignored.
        synchronization, aggregation: As for `Variable`.
        partitioner: Optional, in graph mode; by default the scope's partitioner.
            `partitioner(shape=shape, dtype=dtype)` returns the number of parts along each axis.
        custom_getter: Optional; by default the scope's getter. See `variable_scope`.

    Returns:
        The variable, or the result of a custom getter.

    Raises:
        NotImplementedError: There is a partitioner in eager mode.
        InvalidArgumentError: A custom getter or partitioner is not callable. The variable exists
            without `reuse`, is missing with `reuse=True`, or has another shape.
        InvalidTypeError: An existing variable has another dtype.
    """
    scope = get_variable_scope()
    partitioner = scope.partitioner if partitioner is None else partitioner
    check_callable(partitioner, "partitioner")
    full = f"{scope.name}/{name}" if scope.name else name
    initializer = scope.initializer if initializer is None else initializer
    options: dict[str, Any] = {"shape": shape, "dtype": dtype, "initializer": initializer}
    options |= {
        "regularizer": scope.regularizer if regularizer is None else regularizer,
        "reuse": scope.reuse,
        "trainable": is_trained(trainable, synchronization),
        "collections": collections,
        "validate_shape": validate_shape,
        "constraint": scope.constraint if constraint is None else constraint,
        "use_resource": scope.use_resource if use_resource is None else use_resource,
        "partitioner": partitioner,
    }
    custom = scope.custom_getter if custom_getter is None else custom_getter
    check_callable(custom, "custom_getter")
    if custom is None:
        return _get_whole_name(full, **options)
    options |= {"synchronization": synchronization, "aggregation": aggregation}
    return _call_getter(custom, full, options, scope.dtype)


def _call_getter(
    custom_getter: Getter, name: str, options: dict[str, Any], scope_dtype: object
) -> Any:
    """Return the result of `custom_getter`, called with `name` and `options`.

    `options` are arguments of `get_variable`, and are changed in place. A dtype of None becomes
    the dtype of the initializer, if that is a value, or else `scope_dtype`. The constraint is
    deleted if the getter does not accept a constraint.
    """
    initializer = options["initializer"]
    # Custom getters compare the dtype with others.
    if options["dtype"] is None:
        is_value = initializer is not None and not callable(initializer)
        value_dtype = getattr(initializer, "dtype", None) if is_value else scope_dtype
        options["dtype"] = to_tensor(initializer).dtype if value_dtype is None else value_dtype
    if not _takes_argument(custom_getter, "constraint"):
        del options["constraint"]
    # The name is whole, so no name scope is put in front of it.
    with get_default_graph().name_scope(None):
        return custom_getter(getter=_get_whole_name, name=name, caching_device=None, **options)


def create_partitioned_variables(
    shape: Sequence[int],
    slicing: Sequence[int],
    initializer: object,
    dtype: object = torch.float32,
    trainable: bool = True,
    collections: Iterable[str] | None = None,
    name: str | None = None,
    reuse: object = None,
) -> list[GraphVariable]:
    """Find or create a partitioned variable; return the list of its parts.

    Args:
        shape: Shape of the whole variable, with one axis at least.
        slicing: Number of parts along each axis; more than 1 along one axis at most.
        initializer: A value of shape `shape`, or an initializer, called for each part.
        dtype: Dtype of the parts; ignored if the initializer is a value.
        trainable, collections: As for `get_variable`.
        name: Name of the whole variable, by default "PartitionedVariable", made unique.
        reuse: As for `variable_scope`.

    Raises:
        NotImplementedError: Called in eager mode.
        InvalidArgumentError: The slicing or a value does not fit the shape. The variable exists
            without `reuse`, or is missing with `reuse=True`.
    """
    if not len(Shape(shape)):
        raise InvalidArgumentError(f"A partitioned variable has an axis, but its shape is {shape}.")
    with variable_scope(name, "PartitionedVariable", reuse=reuse) as scope:
        partitioned = _get_whole_name(
            scope.name,
            shape,
            dtype if initializer is None or callable(initializer) else None,
            scope.initializer if initializer is None else initializer,
            regularizer=scope.regularizer,
            reuse=scope.reuse,
            trainable=trainable,
            collections=collections,
            partitioner=lambda **unused: slicing,
            use_resource=scope.use_resource,
            constraint=scope.constraint,
        )
    return list(partitioned)


def _get_whole_name(
    name: str,
    shape: Sequence[int] | int | None = None,
    dtype: object = None,
    initializer: object = None,
    regularizer: Callable[[Any], object] | None = None,
    reuse: object = None,
    trainable: bool | None = None,
    collections: Iterable[str] | None = None,
    caching_device: object = None,
    partitioner: object = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    constraint: Constraint | None = None,
    synchronization: object = None,
    aggregation: object = None,
) -> Any:
    """Find or create the variable with the full name `name`; see `get_variable`."""
    if isinstance(shape, int):
        shape = (shape,)
    options: dict[str, Any] = {"regularizer": regularizer, "trainable": trainable}
    options |= {"collections": collections, "validate_shape": validate_shape}
    options |= {"use_resource": use_resource, "constraint": constraint}
    partitioned = get_default_graph().partitioned_store
    is_partitioned = partitioner is None and reuse is True and name in partitioned
    # Scalars are not partitioned: they have no axis to divide.
    if is_partitioned or (partitioner is not None and (shape is None or len(Shape(shape)))):
        args = (name, partitioner, shape, dtype, initializer, reuse)
        return get_partitioned(_get_whole_name, *args, **options)
    if name in partitioned:
        raise InvalidArgumentError(
            "No partitioner was provided, but a partitioned version of the variable was found:"
            f" {name}/part_0. Give the partitioner of that, or reuse=True."
        )
    kind = None if dtype is None else as_dtype(dtype)
    if executing_eagerly() and current_session() is None:
        return _create_eager(name, shape, kind, initializer, trainable, constraint)
    existing = _find_existing(name, reuse, shape, kind)
    if existing is not None:
        return existing
    return _create_in_graph(name, shape, kind, initializer, **options)


def _create_eager(
    name: str,
    shape: Any,
    kind: torch.dtype | None,
    initializer: Any,
    trainable: bool | None,
    constraint: Constraint | None,
) -> EagerVariable:
    """Return a new eager variable. `kind` is the dtype; for other arguments see `get_variable`."""
    start, dtype = _initial_value(name, shape, kind, initializer)
    if shape is not None and needs_arguments(start):
        start = partial(start, shape, dtype)
    return EagerVariable(start, name, trainable is not False, constraint, dtype)


def _create_in_graph(
    name: str,
    shape: Any,
    kind: torch.dtype | None,
    initializer: Any,
    *,
    regularizer: Any,
    trainable: bool | None,
    **options: Any,
) -> GraphVariable:
    """Create, register and return a variable of the default graph; add its regularization loss.

    `kind` is the dtype; `options` are further arguments of `create_variable`.
    """
    graph = get_default_graph()
    start, dtype = _initial_value(name, shape, kind, initializer)
    options.update(dtype=dtype, shape=shape, trainable=trainable is not False, absolute=True)
    variable = create_variable(graph, start, name, **options)
    graph.variable_store[name] = variable
    _add_regularization_loss(graph, variable, regularizer)
    return variable


def _initial_value(
    name: str, shape: Any, kind: torch.dtype | None, initializer: Any
) -> tuple[Any, Any]:
    """Return (initial value or initializer, dtype) of a new variable.

    `kind` is the requested dtype or None. The returned dtype is None if the initial value decides.
    Raise InvalidArgumentError for a missing or partly unknown shape, or for a shape with a value.
    """
    is_value = initializer is not None and not callable(initializer)
    if is_value and shape is not None:
        raise InvalidArgumentError("If initializer is a constant, do not specify shape.")
    if is_value:
        return initializer, kind
    if shape is not None or initializer is None:
        _check_defined(name, shape)
    dtype = kind or as_dtype(get_variable_scope().dtype)
    start = as_initializer(initializer, dtype)
    if shape is not None:
        return start, dtype
    if needs_arguments(start):
        raise InvalidArgumentError(
            f"The initializer of '{name}' is not valid: it should be a callable without"
            " arguments, or there should be a shape."
        )
    return start, kind


def _check_defined(name: str, shape: Sequence[int | None] | None) -> None:
    """Raise InvalidArgumentError unless the shape of a new variable is fully known."""
    if shape is None or (isinstance(shape, Iterable) and any(size is None for size in shape)):
        raise InvalidArgumentError(
            f"Shape of a new variable ({name}) must be fully defined, but instead was {shape}."
        )


def _add_regularization_loss(graph: Graph, variable: GraphVariable, regularizer: Any) -> None:
    """Add `regularizer(variable)`, unless None, to the collection REGULARIZATION_LOSSES."""
    if regularizer is None:
        return
    scope_name = f"{variable.op.name}/Regularizer/"
    # Outside of the current branch or loop, as the variable is.
    with graph.control_dependencies(None), graph.name_scope(scope_name):
        loss = regularizer(variable)
    if loss is not None:
        graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)


def _find_existing(
    name: str, reuse: object, shape: Sequence[int] | None, kind: torch.dtype | None
) -> GraphVariable | None:
    """Return the variable `name` of the default graph, or None if there is none.

    Raise InvalidArgumentError if the variable exists without `reuse`, is missing with `reuse=True`,
    or has another shape. Raise InvalidTypeError if the variable has another dtype.
    """
    existing = get_default_graph().variable_store.get(name)
    if existing is None and reuse is True:
        raise InvalidArgumentError(
            f"Variable {name} does not exist, or was not created with get_variable(). Did you mean "
            "to set reuse=AUTO_REUSE in variable_scope()?"
        )
    if existing is None:
        return None
    if not reuse:
        raise InvalidArgumentError(
            f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or "
            f"reuse=AUTO_REUSE in variable_scope()? It was made at {existing.op.origin}."
        )
    if shape is not None and not existing.shape.accepts(tuple(shape)):
        raise InvalidArgumentError(
            f"Trying to share variable {name}, but specified shape {tuple(shape)} and found shape "
            f"{tuple(existing.shape)}."
        )
    if kind is not None and existing.dtype is not None and kind != existing.dtype:
        raise InvalidTypeError(
            f"Trying to share variable {name}, but specified dtype {dtype_name(kind)} and found "
            f"dtype {dtype_name(existing.dtype)}."
        )
    return existing


def _takes_argument(function: Callable[..., object], name: str) -> bool:
    """Return True if a function accepts an argument named `name`, or has no signature."""
    # Some functions in C have none.
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return True
    return any(param.name == name or param.kind is param.VAR_KEYWORD for param in parameters)

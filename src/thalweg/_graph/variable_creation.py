"""Constructors of variables of a graph."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from thalweg._base.execution_context import executing_eagerly
from thalweg._base.static_shape import Shape
from thalweg._graph.default_graph import get_default_graph
from thalweg._graph.nodes import SymbolicTensor
from thalweg._graph.shapes import Output
from thalweg._graph.variables import GraphVariable, create_variable, declared_shape, needs_arguments
from thalweg.errors import InvalidTypeError
from thalweg.variable import Constraint, as_dtype, is_trained
from thalweg.variable import Variable as EagerVariable


def Variable(
    initial_value: Any = None,
    trainable: bool | None = None,
    collections: Iterable[str] | None = None,
    validate_shape: bool = True,
    name: str | None = None,
    dtype: object = None,
    constraint: Constraint | None = None,
    shape: Sequence[int] | None = None,
    *,
    use_resource: bool | None = None,
    caching_device: object = None,
    synchronization: object = None,
    aggregation: object = None,
) -> Any:
    """Return a variable of the default graph; in eager mode a `thalweg.Variable`.

    Args:
        initial_value: A number, nested list, array, tensor or symbolic tensor; a function without
            arguments that returns one; or `initializer(shape, dtype)`, which needs `shape`.
        trainable: True if `minimize` without `var_list` updates the variable. None counts as False
            with `VariableSynchronization.ON_READ`, otherwise as True.
        collections: By default GLOBAL_VARIABLES. Trainable variables are also in
            TRAINABLE_VARIABLES.
        validate_shape: False leaves the shape unknown; a session may change it.
        name: Optional; made unique, below the current name scope.
        dtype: Optional; converts the initial value.
        constraint: Optional; a function that an optimizer applies after each update.
        shape: Shape for an initializer, or declared shape. None marks sizes that assignments may
            change; with `tf.TensorShape(None)` they may change all sizes.
        use_resource: True to fetch the value before the updates of a run, False to fetch the value
            after the updates. By default True, unless changed by `tf.compat.v1`, such as by
            `disable_v2_behavior`.
        caching_device: Ignored.
        synchronization, aggregation: As in `thalweg.keras.optimizers.Optimizer.add_weight`, for
            `thalweg.v1.Variable`; here they are ignored.

    Raises:
        InvalidTypeError: There is no initial value, or it is not numeric.
        InvalidArgumentError: The initial value does not have the shape, or the constraint is not
            callable.
        FailedPreconditionError: The graph is finalized.
    """
    if initial_value is None:
        raise InvalidTypeError("initial_value must be specified.")
    trainable = is_trained(trainable, synchronization)
    if executing_eagerly():
        value = initial_value
        is_initializer = shape is not None and callable(value) and needs_arguments(value)
        if is_initializer:
            value = functools.partial(value, shape)
        variable = EagerVariable(value, name, trainable, constraint, dtype)
        if shape is not None and not is_initializer:
            declared_shape(shape, variable.shape)
            variable._takes = Shape(shape)
        return variable
    return create_variable(
        get_default_graph(),
        initial_value,
        name or "Variable",
        trainable=trainable,
        collections=collections,
        dtype=dtype,
        constraint=constraint,
        shape=shape,
        validate_shape=validate_shape,
        use_resource=use_resource,
    )


def make_variable(
    initial_value: object,
    name: str,
    *,
    like: SymbolicTensor | torch.Tensor | None = None,
    trainable: bool = False,
    collections: Iterable[str] | None = None,
    dtype: object = None,
) -> GraphVariable:
    """Return a variable for internal use of an optimizer, such as a slot.

    Args:
        initial_value: As in `Variable`; but a function without arguments is called when a session
            initializes the variable. The function may read variables with `resolve`.
        name: The whole name, outside of all name scopes; made unique.
        like: Optional. A tensor of the graph, with the shape and dtype of a function's result.
        trainable: True to add the variable to TRAINABLE_VARIABLES.
        collections: By default GLOBAL_VARIABLES.
        dtype: Optional; converts the initial value.
    """
    graph = like.graph if isinstance(like, SymbolicTensor) else get_default_graph()
    deferred = None
    if callable(initial_value):
        variable_dtype = getattr(like, "dtype", None) if dtype is None else as_dtype(dtype)
        deferred = Output(variable_dtype, getattr(like, "shape", None))
    return create_variable(
        graph,
        initial_value,
        name,
        trainable=trainable,
        collections=collections,
        dtype=dtype,
        deferred=deferred,
        absolute=True,
        use_resource=getattr(like, "is_resource", None),
    )

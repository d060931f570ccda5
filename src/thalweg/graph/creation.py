"""How variables of a graph are made."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from thalweg.errors import InvalidTypeError
from thalweg.graph.collections import GraphKeys
from thalweg.graph.running import current_session, executing_eagerly, get_default_graph
from thalweg.graph.shapes import Output
from thalweg.graph.tensor import SymbolicTensor
from thalweg.graph.variables import GraphVariable
from thalweg.variable import Constraint, as_dtype, to_tensor
from thalweg.variable import Variable as EagerVariable

if TYPE_CHECKING:
    from thalweg.graph.graph import Graph


def Variable(
    initial_value: Any = None,
    trainable: bool = True,
    collections: Iterable[str] | None = None,
    validate_shape: bool = True,
    name: str | None = None,
    dtype: Any = None,
    constraint: Constraint | None = None,
    shape: Sequence[int] | None = None,
) -> Any:
    """A variable of the default graph; in eager mode a `thalweg.Variable`.

    Args:
        initial_value: A number, nested list, array, tensor, symbolic tensor, a callable without
            arguments that returns one, or an initializer, which needs `shape`.
        trainable: Whether `minimize` without a list of variables includes it.
        collections: By default GLOBAL_VARIABLES; trainable variables are in TRAINABLE_VARIABLES
            besides.
        validate_shape: False leaves the shape open, so that a session may give it any.
        name: Optional; made unique, below the current name scope.
        dtype: Optional; converts the initial value.
        constraint: Optional; a function that an optimizer applies after each update.
        shape: For an initializer.

    Raises:
        InvalidTypeError: There is no initial value, or it is not numeric.
        FailedPreconditionError: The graph is finalized.
    """
    if initial_value is None:
        raise InvalidTypeError("initial_value must be specified.")
    if executing_eagerly():
        value = functools.partial(initial_value, shape) if shape is not None else initial_value
        return EagerVariable(value, name, trainable, constraint, dtype)
    return create(
        get_default_graph(),
        initial_value,
        name or "Variable",
        trainable=trainable,
        collections=collections,
        dtype=dtype,
        constraint=constraint,
        shape=shape,
        validate_shape=validate_shape,
    )


def make_variable(
    initial_value: Any,
    name: str,
    *,
    like: SymbolicTensor | torch.Tensor | None = None,
    trainable: bool = False,
    collections: Iterable[str] | None = None,
    dtype: Any = None,
) -> GraphVariable:
    """A variable for an optimizer's own use, such as a slot.

    Args:
        initial_value: As in `Variable`; a callable without arguments is called when a session
            initializes the variable, and may then use `resolve`.
        name: The whole name, outside of all name scopes; made unique.
        like: Optional. Gives the graph, and the shape and dtype that are not known otherwise.
        trainable: Whether it is in TRAINABLE_VARIABLES.
        collections: By default GLOBAL_VARIABLES.
        dtype: Optional; converts the initial value.
    """
    graph = like.graph if isinstance(like, SymbolicTensor) else get_default_graph()
    deferred = None
    if callable(initial_value):
        wanted = getattr(like, "dtype", None) if dtype is None else as_dtype(dtype)
        deferred = Output(wanted, getattr(like, "shape", None))
    return create(
        graph,
        initial_value,
        name,
        trainable=trainable,
        collections=collections,
        dtype=dtype,
        deferred=deferred,
        absolute=True,
    )


def create(
    graph: Graph,
    initial_value: Any,
    name: str,
    *,
    trainable: bool = True,
    collections: Iterable[str] | None = None,
    dtype: Any = None,
    constraint: Constraint | None = None,
    shape: Sequence[int] | None = None,
    validate_shape: bool = True,
    deferred: Output | None = None,
    absolute: bool = False,
) -> GraphVariable:
    """What `Variable` and `make_variable` have in common.

    `deferred` describes the value of a callable that is called in the run that initializes.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    with graph.as_default(), graph.control_dependencies(None):
        full = graph.unique_name(name, mark_as_used=False, absolute=absolute)
        if callable(initial_value) and deferred is None:
            given = () if shape is None else (shape, wanted)
            with graph.name_scope(f"{full}/Initializer/"):
                initial_value = initial_value(*given)
        if deferred is None and not isinstance(initial_value, SymbolicTensor):
            initial_value = _constant(initial_value, wanted)
        elif deferred is None and wanted not in (None, initial_value.dtype):
            initial_value = initial_value.to(wanted)
        op = graph.add(
            full, None, kind="variable", type="VariableV2", outputs=[Output()],
            make=GraphVariable, absolute=True,
        )  # fmt: skip
        variable: Any = op.outputs[0]
        start = _initial_tensor(graph, initial_value, f"{op.name}/initial_value", deferred)
        assigning = functools.partial(_initialize, variable)
        variable.initializer = graph.add(
            f"{op.name}/Assign", assigning, (start,), kind="update", type="Assign", absolute=True
        )
    op.device = start.device
    variable.dtype, variable.shape = start.dtype, start.shape if validate_shape else None
    variable.initial_value = start
    variable.trainable, variable.constraint = bool(trainable), constraint
    keys = [GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
    if trainable and GraphKeys.TRAINABLE_VARIABLES not in keys:
        keys.append(GraphKeys.TRAINABLE_VARIABLES)
    graph.add_to_collections(keys, variable)
    return variable


def _constant(value: Any, dtype: Any) -> torch.Tensor:
    tensor = to_tensor(value, dtype).detach()
    is_shared = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    return tensor.clone() if is_shared else tensor


def _initial_tensor(graph: Graph, value: Any, name: str, deferred: Output | None) -> SymbolicTensor:
    if isinstance(value, SymbolicTensor):
        return value
    if deferred is not None:
        op = graph.add(name, value, outputs=[deferred], kind="update", absolute=True)
        return op.outputs[0]
    output = Output(value.dtype, tuple(value.shape), ())
    op = graph.add(name, lambda: value, type="Const", outputs=[output], absolute=True)
    op.device = value.device
    return op.outputs[0]


def _initialize(variable: GraphVariable, value: Any) -> None:
    session = current_session()
    if session is not None:
        session.initialize(variable, value)

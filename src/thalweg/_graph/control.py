"""Operations that order or combine other operations, or that initialize variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from thalweg._base.execution_context import current_session, executing_eagerly
from thalweg._core.nest import leaves_of
from thalweg._graph.add_operation import add, add_tensor
from thalweg._graph.collections import GraphKeys
from thalweg._graph.default_graph import get_default_graph
from thalweg._graph.nodes import Nodes, Operation, SymbolicTensor
from thalweg._graph.shapes import Output
from thalweg._graph.symbolic_slices import SymbolicSlices
from thalweg._graph.variables import GraphVariable, alias_node
from thalweg.errors import FailedPreconditionError


def no_op(name: str | None = None) -> Any:
    """Return an operation without effect, which runs after its control dependencies.

    Return None while a session runs an operation's function.
    """
    if current_session() is not None:
        return None
    return add(get_default_graph(), "NoOp" if name is None else name, None, type="NoOp")


def group(*inputs: object, name: str | None = None) -> Any:
    """Return an operation that completes after all of `inputs`.

    `inputs` may contain nested lists and None. Raise InvalidTypeError if an input is neither an
    operation nor symbolic. Return None for eager tensors in eager mode. Also return None inside of
    a function that a session runs.
    """
    items = [item for item in leaves_of(inputs) if item is not None]
    # Hooks written for graphs may call this with eager tensors, whose updates are done.
    is_eager = executing_eagerly() and all(isinstance(item, torch.Tensor) for item in items)
    if is_eager or current_session() is not None:
        return None
    graph = next((x.graph for x in items if hasattr(x, "graph")), None) or get_default_graph()
    controls = [graph.as_operation(item) for item in items]
    return add(graph, name or "group_deps", None, type="NoOp", control_inputs=controls)


def tuple_(
    tensors: Sequence[object], name: str | None = "tuple", control_inputs: Iterable[object] = ()
) -> list[Any]:
    """Return a copy of each tensor, computed only after all of `tensors`; None stays None.

    Args:
        tensors: Symbolic tensors, slices, or None.
        control_inputs: Further operations that run before the copies.
    """
    graph = get_default_graph()
    with graph.name_scope(name or "tuple"):
        barrier = group(*tensors, *control_inputs)
        with graph.control_dependencies([barrier]):
            return [_gate_tensor(tensor) for tensor in tensors]


def _gate_tensor(tensor: Any) -> object:
    """Return an `Identity` of a tensor or slices, after the current control dependencies."""
    if tensor is None:
        return None
    if isinstance(tensor, SymbolicSlices):
        return SymbolicSlices.of(alias_node(tensor.source, "control_dependency"))
    return alias_node(tensor, "control_dependency")


def as_one_update(call: Callable[[], object]) -> Any:
    """Call `call()`; return the result. All operations that the call adds form one update.

    If the call wrote in place after computing the result, return an operation after both.
    """
    graph = get_default_graph()
    with graph.as_one():
        return after_writes(graph, call())


def after_writes(graph: Nodes, outcome: object) -> Any:
    """Return `outcome`, or an operation after `outcome` and all in-place writes of the unit."""
    tail: Any = () if graph.unit is None else graph.unit.last_writes
    nodes = [getattr(leaf, "op", leaf) for leaf in leaves_of(outcome)]
    # An operation that was added after the last write waits for it already.
    if not tail or max((getattr(op, "index", -1) for op in nodes), default=-1) > tail[0].index:
        return outcome
    return group(*(op for op in nodes if isinstance(op, Operation)))


def updates_since(graph: Nodes, start: int) -> list[Operation]:
    """Return the updates of the current unit, without the first `start` operations of the graph."""
    new_operations = islice(graph.operations.values(), start, None)
    unit_and_block = graph.unit, graph.block
    return [
        op for op in new_operations if op.kind == "update" and (op.unit, op.block) == unit_and_block
    ]


def global_variables(scope: str | None = None) -> list[GraphVariable]:
    """Return the variables of the default graph in GLOBAL_VARIABLES."""
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def local_variables(scope: str | None = None) -> list[GraphVariable]:
    """Return the variables of the default graph in LOCAL_VARIABLES."""
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[GraphVariable]:
    """Return the variables of the default graph in TRAINABLE_VARIABLES, which `minimize` trains."""
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def moving_average_variables(scope: str | None = None) -> list[GraphVariable]:
    """Return the variables of the default graph that have a moving average."""
    return get_default_graph().get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, scope)


def variables_initializer(
    var_list: Iterable[GraphVariable], name: str | None = "init"
) -> Operation:
    """Return an operation that sets variables to their initial values."""
    return group([variable.initializer for variable in var_list], name=name or "init")


def global_variables_initializer() -> Operation:
    """Return an operation that initializes the present global variables."""
    return variables_initializer(global_variables())


initialize_all_variables = global_variables_initializer


def local_variables_initializer() -> Operation:
    """Return an operation that initializes the present local variables."""
    return variables_initializer(local_variables())


def is_variable_initialized(
    ref: GraphVariable, name: str | None = "IsVariableInitialized"
) -> SymbolicTensor:
    """Return a scalar bool tensor: True in runs of sessions that have initialized `ref`."""
    output = Output(torch.bool, (), ())

    def is_initialized() -> torch.Tensor:
        return torch.tensor(_has_value(ref), dtype=torch.bool, device="cpu")

    return add_tensor(ref.graph, name or "IsVariableInitialized", is_initialized, (), output)


def report_uninitialized_variables(
    var_list: Sequence[GraphVariable] | None = None,
    name: str | None = "report_uninitialized_variables",
) -> SymbolicTensor:
    """Return a tensor: its value in a run is an array of the names of uninitialized variables.

    The names are bytes in a NumPy array of objects. `var_list` is by default all global and local
    variables of the default graph.
    """
    name = name or "report_uninitialized_variables"
    variables = [*global_variables(), *local_variables()] if var_list is None else list(var_list)

    # The elements of TensorFlow's string tensors are bytes.
    def uninitialized_names() -> object:
        return np.array([x.op.name.encode() for x in variables if not _has_value(x)], dtype=object)

    return add_tensor(get_default_graph(), name, uninitialized_names, (), Output(None, (None,), ()))


def assert_variables_initialized(var_list: Sequence[GraphVariable] | None = None) -> Any:
    """Return an operation that raises FailedPreconditionError if a variable is not initialized.

    `var_list` is by default all global and local variables. If there are none, return None.
    """
    variables = [*global_variables(), *local_variables()] if var_list is None else list(var_list)
    if not variables:
        return None

    def check() -> None:
        """Raise FailedPreconditionError if a variable is not initialized."""
        missing = [var.op.name for var in variables if not _has_value(var)]
        if missing:
            raise FailedPreconditionError(
                f"Attempting to use uninitialized value {', '.join(missing)}"
            )

    return add(get_default_graph(), "assert_variables_initialized", check)


def _has_value(variable: GraphVariable) -> bool:
    """Return True if the session that runs has initialized the variable."""
    session = current_session()
    return session is not None and session.is_initialized(variable)

"""Default graph: the graph that receives new operations, and functions that use it implicitly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from thalweg._base.execution_context import executing_eagerly, process, thread
from thalweg._base.tensor_patching import lend_for_good
from thalweg._graph.graph import Graph
from thalweg._graph.modules import start_intercepting, stop_intercepting
from thalweg._graph.variables import variable_of
from thalweg.errors import FailedPreconditionError


class _GraphState:
    """Holder of the global graph, shared by all threads."""

    def __init__(self) -> None:
        self.graph = Graph()


_process = _GraphState()


def get_default_graph() -> Graph:
    """Return the graph of the innermost `as_default`, or the global graph."""
    return thread.graphs[-1] if thread.graphs else _process.graph


process.default_graph = get_default_graph


def reset_default_graph() -> None:
    """Replace the global graph by a new one.

    Raises:
        FailedPreconditionError: Called inside `Graph.as_default`.
    """
    if thread.graphs:
        raise FailedPreconditionError("reset_default_graph() cannot be called inside as_default().")
    _process.graph = Graph()


def disable_eager_execution() -> None:
    """Switch all threads to graph mode: calls build the default graph."""
    # Programs for graphs call TensorFlow's methods, such as `get_shape`, on torch's tensors, too.
    lend_for_good()
    process.is_mode_fixed = True
    if process.eager:
        process.eager = False
        start_intercepting()


def enable_eager_execution(
    config: object = None, device_policy: object = None, execution_mode: object = None
) -> None:
    """Switch all threads back to eager mode; all arguments are ignored."""
    process.is_mode_fixed = True
    if not process.eager:
        process.eager = True
        stop_intercepting()


def begin_graphs() -> None:
    """Switch to graph mode, unless a mode was set or eager mode was used.

    Variables are then reference variables by default, as in TensorFlow 1.
    """
    if not (process.is_mode_fixed or thread.frames or thread.eager_blocks or thread.graphs):
        disable_eager_execution()
        process.resource_variables = False


def graph_variable_of(parameter: object) -> Any:
    """Return the variable of the default graph for a torch parameter.

    The first call creates the variable. A session that initializes the variable copies the present
    value of the parameter. For an object with a method `_as_graph_element`, return the result of
    this method. Return any other object unchanged.
    """
    graph = get_default_graph()
    is_parameter = isinstance(parameter, torch.nn.Parameter)
    return variable_of(graph, parameter) if is_parameter else graph.symbol_of(parameter)


def has_symbol(item: object) -> bool:
    """Return True if `graph_variable_of` may return another object than `item`."""
    return isinstance(item, torch.nn.Parameter) or hasattr(type(item), "_as_graph_element")


@contextlib.contextmanager
def name_scope(
    name: str | None = None, default_name: str | None = None, values: object = None
) -> Iterator[str]:
    """Return a context manager of a name scope of the default graph; yields the scope's name.

    `default_name` is used if `name` is None.
    """
    with get_default_graph().name_scope(default_name if name is None else name) as scope:
        yield scope


def control_dependencies(
    control_inputs: Sequence[object] | None,
) -> contextlib.AbstractContextManager[None]:
    """Return `Graph.control_dependencies(control_inputs)` of the default graph.

    The context manager has no effect for eager tensors in eager mode. It has no effect inside of a
    function that a session runs, such as an optimizer's hook.
    """
    is_eager = control_inputs and all(isinstance(x, torch.Tensor | None) for x in control_inputs)
    if thread.frames or (is_eager and executing_eagerly()):
        return contextlib.nullcontext()
    return get_default_graph().control_dependencies(control_inputs)


def add_to_collection(name: object, value: object) -> None:
    """Append a value to a collection of the default graph."""
    get_default_graph().add_to_collection(name, value)


def get_collection(key: object, scope: str | None = None) -> list[Any]:
    """Return a copy of a collection of the default graph; see `Collections.get_collection`."""
    return get_default_graph().get_collection(key, scope)


def get_collection_ref(key: object) -> list[Any]:
    """Return the list of a collection of the default graph itself, not a copy."""
    return get_default_graph().get_collection_ref(key)

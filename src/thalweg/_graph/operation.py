"""`operation`: any Python function as an operation of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg._base.execution_context import first_graph
from thalweg._base.showing import show_value
from thalweg._core.nest import leaves_of, mapped
from thalweg._graph.add_operation import add
from thalweg._graph.arguments import Reference
from thalweg._graph.recording import prepare_nest
from thalweg._graph.shapes import Output
from thalweg._graph.variables import GraphVariable
from thalweg.errors import InvalidArgumentError


def operation(
    function: Callable[..., object],
    inputs: Sequence[object],
    name: str,
    *,
    kind: str = "update",
    outputs: Any = None,
    control_inputs: Sequence[object] = (),
) -> Any:
    """Add an operation that calls `function` with the values of `inputs` in each run.

    Args:
        function: Any Python function.
        inputs: Arguments of `function`, also nested lists, tuples and dicts. For a variable in
            `by_reference`, a run passes the session's writable tensor. For another symbolic input
            the run passes the value: a tensor, `IndexedSlices`, or None for a gradient that the run
            does not compute. Plain objects are passed unchanged.
        name: Made unique, below the current name scope.
        kind: "pure" for a function without side effects, "update" for writes to variables,
            "blocking" for waiting on other threads. A run executes pure operations first, unless
            inputs or control dependencies require another order.
        outputs: None to ignore the result. An `Output`, or an object with `dtype` and `shape`,
            describes a single result. A list of descriptions means a list of results.
        control_inputs: Operations that run first, or their outputs.

    Returns:
        The `Operation` if `outputs` is None, else the operation's output or list of outputs.

    Raises:
        InvalidArgumentError: An input is of another graph, or the kind or name is not valid.
        FailedPreconditionError: The graph is finalized.
    """
    if kind not in ("pure", "update", "blocking"):
        raise InvalidArgumentError(
            f'kind must be "pure", "update" or "blocking", not {show_value(kind)}.'
        )
    leaves = leaves_of(list(inputs))
    graph = first_graph(leaf.symbol if isinstance(leaf, Reference) else leaf for leaf in leaves)
    arguments = prepare_nest(graph, tuple(inputs))
    if kind != "pure":
        arguments = mapped(_read_variable, arguments)
    is_list = isinstance(outputs, (list, tuple))
    descriptions = list(outputs) if is_list else [outputs] if outputs is not None else []
    op = add(
        graph,
        name,
        function,
        arguments,
        outputs=[Output(x.dtype, x.shape, getattr(x, "flows", None)) for x in descriptions],
        picks=tuple(range(len(descriptions))) if is_list else None,
        kind=kind,
        control_inputs=[graph.as_operation(item) for item in control_inputs],
    )
    if outputs is None:
        return op
    return list(op.outputs) if is_list else op.outputs[0]


def _read_variable(leaf: object) -> object:
    """Return a read of a variable, computed before the updates of a run; other leaves unchanged."""
    return leaf.read_value() if isinstance(leaf, GraphVariable) else leaf

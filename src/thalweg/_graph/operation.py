"""`operation`: any Python function as an operation of a graph; `must_hold`: a checked condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thalweg._base.execution_context import first_graph
from thalweg._base.showing import show_value
from thalweg._core.nest import leaves_of, mapped
from thalweg._graph.add_operation import add
from thalweg._graph.arguments import Reference
from thalweg._graph.nodes import SymbolicTensor
from thalweg._graph.recording import prepare_nest
from thalweg._graph.shapes import Output
from thalweg._graph.variables import GraphVariable
from thalweg.errors import InvalidArgumentError
from thalweg.variable import to_tensor


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


def must_hold(
    check: Callable[..., object],
    tensors: Sequence[object],
    message: str,
    data: Sequence[object] = (),
    summarize: int | None = None,
    name: str = "Assert",
) -> Any:
    """Raise InvalidArgumentError if a condition is false, now or in each run of a graph.

    Args:
        check: `check(*tensors)` returns a bool or a tensor of bools; all must be True.
        tensors: Arguments of `check`.
        message: Text of the error.
        data: Tensors and other objects for the text of the error; by default `tensors`.
        summarize: Number of elements per tensor in the text; 3 by default, all if negative.

    Returns:
        The checking operation if an argument is symbolic, otherwise None.
    """
    printed = list(data) or list(tensors)

    def check_values(values: Sequence[object], objects: Sequence[object]) -> None:
        if not to_tensor(check(*values)).all():
            texts = " ".join(f"[{excerpt(leaf, summarize)}]" for leaf in objects)
            raise InvalidArgumentError(f"{message} {texts}".strip())

    if any(isinstance(leaf, SymbolicTensor) for leaf in leaves_of([list(tensors), printed])):
        return operation(check_values, [list(tensors), printed], name, kind="pure")
    return check_values(tensors, printed)


def excerpt(value: object, summarize: int | None) -> str:
    """Return the first `summarize` elements of a value as text; all if negative."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    limit = 3 if summarize is None else summarize
    flat = value.detach().reshape(-1)
    first = flat if limit < 0 else flat[:limit]
    end = "..." if len(first) < len(flat) else ""
    return " ".join(str(element) for element in first.tolist()) + end

"""`add`: a new operation in a graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from thalweg._graph.arguments import argument_filler, inputs_of, written_by
from thalweg._graph.nodes import Nodes, Operation, SymbolicTensor
from thalweg._graph.shapes import Output
from thalweg.errors import FailedPreconditionError, InvalidArgumentError

ONLY_INSIDE = (
    "is made in the function of a cond or a loop, and has no value outside of it: return it from"
    " the function."
)

_LIBRARY = str(Path(__file__).parent.parent)
_CPU = torch.device("cpu")


def add(
    graph: Nodes,
    name: str,
    function: Callable[..., object] | None,
    arguments: Sequence[object] = (),
    *,
    outputs: Sequence[Output] = (),
    picks: tuple[int, ...] | None = None,
    kind: str = "pure",
    type: str | None = None,
    control_inputs: Sequence[Operation] = (),
    absolute: bool = False,
    make: Callable[..., SymbolicTensor] = SymbolicTensor,
    captured: Sequence[SymbolicTensor] = (),
) -> Operation:
    """Add an operation to a graph and return the operation.

    Args:
        name: Made unique, below the current name scope unless `absolute`.
        function: `function(*values)` computes the operation in a run; None computes nothing.
        arguments: Nested lists, tuples and dicts of symbolic tensors, `Reference`s and plain
            objects. A run passes them to `function`, with values for tensors and references.
        outputs: Static description of each output.
        picks: Index of each output in the flattened result of `function`. None if the result of
            `function` is the only output.
        kind: "pure", "update", "blocking", "placeholder" or "variable".
        type: TensorFlow's operation type, such as "Const"; `name` by default.
        control_inputs: Operations that run first, besides those of `control_dependencies`.
        absolute: True to ignore the current name scope.
        make: `make(op, index, dtype, shape)` returns an output tensor.
        captured: Tensors computed before the operation, but not passed to `function`.

    Raises:
        FailedPreconditionError: The graph is finalized.
        InvalidArgumentError: The name is not valid, an input is of another graph, or an input is
            only usable inside of another branch or loop.
    """
    if graph.finalized:
        raise FailedPreconditionError("Graph is finalized and cannot be modified.")
    inputs = tuple(dict.fromkeys((*inputs_of(arguments, graph), *captured)))
    controls = tuple(dict.fromkeys((*graph.control, *control_inputs)))
    _check_needed(graph, inputs, controls)
    device = next((tensor.device for tensor in inputs), _CPU)
    with graph.lock:
        full = _full_name(graph, name, absolute)
        op = Operation(graph, full, kind, type or name, inputs, controls, device)
        op.index = len(graph.operations)
        graph.operations[full] = op
    op.block, op.unit = graph.block, graph.unit
    op.function, op.fill, op.picks = function, argument_filler(arguments), picks
    op.origin = _user_frame()
    if len(arguments) == 1 and isinstance(arguments[0], SymbolicTensor):
        op.argument = arguments[0]
    op.written = () if kind == "pure" else written_by(arguments)
    op.outputs = tuple(make(op, i, output.dtype, output.shape) for i, output in enumerate(outputs))
    if outputs and all(output.flows is not None for output in outputs):
        op.flows = tuple(output.flows or () for output in outputs)
    return op


def add_tensor(
    graph: Nodes,
    name: str,
    function: Callable[..., object] | None,
    arguments: Sequence[object],
    output: Output,
    **options: Any,
) -> Any:
    """Add an operation with one output, and return the output; `options` are arguments of `add`."""
    return add(graph, name, function, arguments, outputs=[output], **options).outputs[0]


def _check_needed(
    graph: Nodes, inputs: Sequence[SymbolicTensor], controls: Sequence[Operation]
) -> None:
    """Raise InvalidArgumentError if a new operation may not use one of `inputs` or `controls`.

    Operations of a branch or loop are usable only inside the branch or loop. A view of a variable
    is not usable after an in-place write to the variable.
    """
    for operation in (*(tensor.op for tensor in inputs), *controls):
        if operation.block is not None and (
            graph.block is None or not graph.block.can_use(operation.block)
        ):
            raise InvalidArgumentError(f"'{operation.name}' {ONLY_INSIDE}")
    stale = {} if graph.unit is None else graph.unit.stale
    for tensor in inputs if stale else ():
        if tensor in stale:
            raise InvalidArgumentError(
                f"'{tensor.name}' was made before '{stale[tensor]}' wrote to the memory that it"
                " looks into: make it after that."
            )


def _full_name(graph: Nodes, name: str, absolute: bool) -> str:
    """Return a unique name in the current name scope; a name ending with "/" is used unchanged."""
    exact = name[:-1]
    if not name.endswith("/"):
        return graph.unique_name(name, absolute=absolute)
    if exact in graph.operations:
        return graph.unique_name(exact, absolute=True)
    graph.claim_name(exact)
    return exact


def _user_frame() -> str:
    """Return "file:line" of the innermost stack frame outside of the library."""
    # Called for each operation; `inspect.stack` would read source files.
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"

"""Branches and loops: an operation that runs *bodies*, which are parts of its graph.

A body is the function of a branch or loop. A body is called once, when the graph is built. The
added operations are the nodes of a separate block, a `Subgraph`. Only the operation of the branch
or loop runs the block. Outer tensors that the block uses are inputs of the operation, and are
computed first. The operation's function receives each body as a Python function,
`plan.SubgraphRun`, which runs the steps and returns the values. A conditional is then
`then() if pred else otherwise()`, a loop is `while`, and autograd records the executed steps.

A variable that a body creates is outside of the block, since all runs share variables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from thalweg._core.nest import leaves_of, mapped, packed
from thalweg._graph.add_operation import add, add_tensor
from thalweg._graph.nodes import Nodes, Operation, Subgraph, SymbolicTensor
from thalweg._graph.ops import constant, convert_to_tensor
from thalweg._graph.scopes import Block
from thalweg._graph.shape_mismatch import common_sizes
from thalweg._graph.shapes import Output
from thalweg._graph.symbolic_slices import SymbolicSlices
from thalweg._graph.variables import GraphVariable, alias_node
from thalweg.errors import InvalidTypeError


def trace_block(
    graph: Nodes, function: Callable[..., object], parameters: Iterable[Output] = ()
) -> Subgraph:
    """Call `function` on one new symbolic tensor per parameter; return the `Subgraph` of the call.

    `function` returns numbers, tensors, slices, operations, or nested lists of these. An operation
    becomes a tensor that is True after the operation. Raise InvalidTypeError if `function` returns
    None, or an object that is not convertible.
    """
    block = Block(graph.block)
    with graph.build_inside(block):
        arguments = tuple(
            add_tensor(graph, "Argument", None, (), parameter, kind="placeholder")
            for parameter in parameters
        )
        returned = function(*arguments)
        if returned is None:
            raise InvalidTypeError(f"{function!r} must have a return value.")
        nest = mapped(functools.partial(_block_result, graph), returned)
    results = tuple(x.source if isinstance(x, SymbolicSlices) else x for x in leaves_of(nest))
    return Subgraph(block, arguments, results, nest)


def _block_result(graph: Nodes, leaf: object) -> object:
    """Return a result of a body as a new tensor of the current block; slices remain slices.

    `leaf` is a number, a tensor, slices or an operation. For an operation, return a constant True
    that is computed after the operation.
    """
    if isinstance(leaf, Operation):
        with graph.control_dependencies([leaf]):
            return constant(True)
    if isinstance(leaf, SymbolicSlices):
        return SymbolicSlices.of(alias_node(leaf.source, "Identity"))
    return alias_node(convert_to_tensor(leaf), "Identity")


def run_by(
    function: Callable[..., list[Any]],
    subgraphs: Sequence[Subgraph],
    arguments: Sequence[object],
    outputs: Sequence[Output],
    name: str,
) -> list[SymbolicTensor]:
    """Add the operation of a branch or loop; return the operation's outputs.

    Args:
        function: `function(*bodies, *values)` returns a list with each output's value. `bodies` are
            functions that run `subgraphs`; `values` are the arguments' values.
        subgraphs: Results of `trace_block`.
        arguments: Nested lists, tuples and dicts of symbolic tensors and plain objects.
        outputs: Static description of each output.
    """
    # Outer tensors that the bodies need must be computed before the branch or loop.
    graph = subgraphs[0].results[0].graph
    operations = [op for subgraph in subgraphs for op in operations_of(subgraph)]
    # The operation takes the session's lock, or none, as the strictest operation of its bodies.
    kinds = {op.kind for op in operations}
    op = add(
        graph,
        name,
        function,
        arguments,
        outputs=outputs,
        picks=tuple(range(len(outputs))),
        kind=next((kind for kind in ("blocking", "update") if kind in kinds), "pure"),
        control_inputs=[x for op in operations for x in op.control_inputs if x.block != op.block],
        captured=[x for op in operations for x in op.inputs if _is_outside(x, op)],
    )
    op.subgraphs = tuple(subgraphs)
    op.stateful = any(subgraph.stateful for subgraph in operations)
    return list(op.outputs)


def _is_outside(tensor: SymbolicTensor, op: Operation) -> bool:
    """Return True if `tensor` is an outer tensor of the block of `op`, and not a variable."""
    # A body reads variables when it runs, so that it sees its own updates.
    return tensor.op.block is not op.block and not isinstance(tensor, GraphVariable)


def operations_of(subgraph: Subgraph) -> list[Operation]:
    """Return the operations of a body on which the body's results depend, in any order."""
    needed_ops: dict[Operation, None] = {}
    pending = [x.op for x in subgraph.results]
    while pending:
        op = pending.pop()
        if op not in needed_ops and op.block is subgraph.block:
            needed_ops[op] = None
            pending += [*(x.op for x in op.inputs), *op.control_inputs]
    return list(needed_ops)


def flows_of(subgraph: Subgraph, results: Iterable[SymbolicTensor]) -> list[SymbolicTensor]:
    """Return the tensors outside of a body that gradients of the body's `results` reach."""
    reachable: dict[SymbolicTensor, None] = {}
    pending = list(results)
    while pending:
        tensor = pending.pop()
        if tensor not in reachable:
            reachable[tensor] = None
            if tensor.op.block is subgraph.block:
                pending += tensor.op.flows_to(tensor)
    return [x for x in reachable if x.op.block is not subgraph.block]


def merged_output(tensors: Sequence[SymbolicTensor], flows: Iterable[SymbolicTensor]) -> Output:
    """Return the `Output` that describes several tensors: their dtype and their common sizes.

    `flows` are the output's inputs that gradients reach. Raise InvalidTypeError if the dtypes
    differ.
    """
    kinds = dict.fromkeys(x.dtype for x in tensors if x.dtype is not None)
    if len(kinds) > 1:
        descriptions = " and ".join(f"'{x.name}' is {x.dtype}" for x in tensors)
        raise InvalidTypeError(f"All must have the same type, but {descriptions}.")
    shape = common_sizes([tensor.shape for tensor in tensors])
    return Output(next(iter(kinds), None), shape, tuple(dict.fromkeys(flows)))


def wrap_outputs(nest: object, outputs: Iterable[SymbolicTensor]) -> Any:
    """Return outputs in the structure of `nest`, as slices where `nest` has slices."""
    kinds = leaves_of(nest)
    return packed(nest, (_sparse_like(kind, x) for kind, x in zip(kinds, outputs, strict=True)))


def _sparse_like(result: Any, output: SymbolicTensor) -> SymbolicSlices | SymbolicTensor:
    """Return the output, as slices if `result` is slices."""
    if isinstance(result, SymbolicSlices):
        output.may_be_sparse = True
        return SymbolicSlices.of(output)
    output.may_be_sparse = result.may_be_sparse
    return output


def check_same_structure(first: object, second: object, subject: str) -> None:
    """Raise InvalidTypeError for nests of different structures."""
    shapes = [repr(mapped(lambda _: "*", nest)).replace("'*'", "*") for nest in (first, second)]
    if shapes[0] != shapes[1]:
        raise InvalidTypeError(
            f"{subject} must have the same structure, not {' and '.join(shapes)}."
        )

"""Branches and loops: operations that have parts of their graph run, or not, or again and again.

A `Subgraph` is what a function adds to the graph while it is called once, as the graph is built.
Its operations are in a block of their own: they are ordinary nodes, but no run reaches them from
outside. The one operation that has the subgraph is their way in. It takes as inputs what they use
of the outside, so that all of that is there when it runs, and its function is given the subgraph as
a Python function (`plan.Part`), which runs the steps and returns the values. So a conditional is
`then() if pred else otherwise()`, a loop is `while`, and torch's autograd sees what has run.

Variables that a function makes are outside of its block, since all runs share them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from thalweg._base.static_shape import UNKNOWN
from thalweg._core.nest import leaves_of, mapped, packed
from thalweg._graph.add_operation import add
from thalweg._graph.nodes import Nodes, Operation, Subgraph, SymbolicTensor
from thalweg._graph.ops import constant, convert_to_tensor
from thalweg._graph.scopes import Block
from thalweg._graph.shapes import Output
from thalweg._graph.symbolic_slices import SymbolicSlices
from thalweg._graph.variables import GraphVariable, alias_node
from thalweg.errors import InvalidTypeError


def trace_block(
    graph: Nodes, function: Callable[..., object], parameters: Iterable[Output] = ()
) -> Subgraph:
    """Call `function` with new tensors, one for each of `parameters`, and keep what it adds.

    What it returns may be a nest of numbers, tensors, slices and operations; that of an operation
    becomes a tensor that is true when the operation is done.

    Raises:
        InvalidTypeError: It returns None, or what no tensor can be made of.
    """
    block = Block(graph.block)
    with graph.build_inside(block):
        arguments = tuple(
            add(graph, "Argument", None, outputs=[parameter], kind="placeholder").outputs[0]
            for parameter in parameters
        )
        returned = function(*arguments)
        if returned is None:
            raise InvalidTypeError(f"{function!r} must have a return value.")
        nest = mapped(functools.partial(_block_result, graph), returned)
    results = tuple(x.source if isinstance(x, SymbolicSlices) else x for x in leaves_of(nest))
    return Subgraph(block, arguments, results, nest)


def _block_result(graph: Nodes, leaf: object) -> object:
    """Return a leaf of a function's result as a result of the block; add its operation there.

    Args:
        graph: The graph that is being built inside the block.
        leaf: A number, a tensor, slices or an operation.

    Returns:
        An `Identity` of a tensor or number; slices of an `Identity` of their source; for an
        operation, a constant True that is computed after it.
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
    """Add the operation that has subgraphs run.

    Args:
        function: Called with the subgraphs as functions, and then with the values of the arguments;
            returns the value of each output.
        subgraphs: Those of functions that were called in this block.
        arguments: Nests of symbolic tensors and plain objects.
        outputs: What is known of each output.
        name: The name of the operation.
    """
    graph = subgraphs[0].results[0].graph
    operations = [op for subgraph in subgraphs for op in operations_of(subgraph)]
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
    """Return True if a tensor must be there before the block of `op` runs; variables always are."""
    return tensor.op.block is not op.block and not isinstance(tensor, GraphVariable)


def operations_of(subgraph: Subgraph) -> list[Operation]:
    """Return the operations of its block that its results need."""
    needed_ops: dict[Operation, None] = {}
    pending = [x.op for x in subgraph.results]
    while pending:
        op = pending.pop()
        if op not in needed_ops and op.block is subgraph.block:
            needed_ops[op] = None
            pending += [*(x.op for x in op.inputs), *op.control_inputs]
    return list(needed_ops)


def flows_of(subgraph: Subgraph, results: Iterable[SymbolicTensor]) -> list[SymbolicTensor]:
    """Return the tensors outside of its block that a gradient of `results` reaches."""
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
    """Return the description of a tensor that is one of several.

    Raises:
        InvalidTypeError: Their dtypes differ.
    """
    kinds = dict.fromkeys(x.dtype for x in tensors if x.dtype is not None)
    if len(kinds) > 1:
        descriptions = " and ".join(f"'{x.name}' is {x.dtype}" for x in tensors)
        raise InvalidTypeError(f"All must have the same type, but {descriptions}.")
    shapes = [x.shape for x in tensors]
    return Output(next(iter(kinds), None), in_common(shapes), tuple(dict.fromkeys(flows)))


def in_common(shapes: Sequence[Any]) -> tuple[int | None, ...] | None:
    """Return the shape that several shapes have in common; None for each size that differs.

    Return None if the shapes have different numbers of dimensions, or if one is unknown.
    """
    if any(shape is UNKNOWN or len(shape) != len(shapes[0]) for shape in shapes):
        return None
    columns = zip(*shapes, strict=True)
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in columns)


def wrap_outputs(nest: object, outputs: Iterable[SymbolicTensor]) -> Any:
    """Return outputs in the structure of results, as slices where the results are."""
    kinds = leaves_of(nest)
    return packed(nest, (_sparse_like(kind, x) for kind, x in zip(kinds, outputs, strict=True)))


def _sparse_like(result: Any, output: SymbolicTensor) -> SymbolicSlices | SymbolicTensor:
    if isinstance(result, SymbolicSlices):
        output.may_be_sparse = True
        return SymbolicSlices.of(output)
    output.may_be_sparse = result.may_be_sparse
    return output


def check_alike(first: object, second: object, title: str) -> None:
    """Raise InvalidTypeError for nests of different structures."""
    shapes = [repr(mapped(lambda _: "*", nest)).replace("'*'", "*") for nest in (first, second)]
    if shapes[0] != shapes[1]:
        raise InvalidTypeError(f"{title} must have the same structure, not {' and '.join(shapes)}.")

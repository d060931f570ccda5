"""`while_loop`, `map_fn`, `scan`, `foldl`, `foldr`: operations that call a function repeatedly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from thalweg._base.execution_context import executing_eagerly
from thalweg._base.static_shape import UNKNOWN, Shape
from thalweg._core.nest import leaves_of, mapped, packed
from thalweg._graph.default_graph import get_default_graph
from thalweg._graph.nodes import Subgraph, SymbolicTensor
from thalweg._graph.ops import convert_to_tensor, identity
from thalweg._graph.shapes import Output
from thalweg._graph.subgraphs import (
    check_same_structure,
    flows_of,
    merged_output,
    run_by,
    trace_block,
)
from thalweg.errors import InvalidArgumentError, InvalidTypeError

Step = Callable[..., Any]


def while_loop(
    cond: Step,
    body: Step,
    loop_vars: Sequence[object],
    shape_invariants: object = None,
    *,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: object = None,
    return_same_structure: bool | None = None,
) -> Any:
    """Repeat `loop_vars = body(*loop_vars)` while `cond(*loop_vars)`; return the last `loop_vars`.

    In graph mode both functions are called once, now, and add operations to the graph. Each run
    executes these operations repeatedly.

    Args:
        cond: `cond(*loop_vars)` returns True to continue.
        body: `body(*loop_vars)` returns new values of unchanged structure and dtypes.
        loop_vars: A list or tuple of tensors, or of nested lists, tuples and dicts of tensors.
        shape_invariants: Optional. Shapes in the structure of `loop_vars`, with None for sizes that
            differ between iterations.
        back_prop: False stops gradients through the loop in graph mode.
        parallel_iterations, swap_memory: Ignored.
        maximum_iterations: Optional. Maximum number of iterations.
        return_same_structure: False returns a single loop variable without a list, True in a list.
            The default is True in eager mode, as in TensorFlow 2, and False in graph mode.

    Raises:
        InvalidTypeError: The structure, a dtype or a known size changes in `body`, or there are no
            loop variables.
    """
    if not callable(cond) or not callable(body):
        raise InvalidTypeError("cond and body of while_loop must be callable.")
    if not loop_vars:
        raise InvalidTypeError("while_loop has no loop_vars.")
    in_graph = not executing_eagerly()
    if in_graph:
        with get_default_graph().name_scope(name or "while"):
            values = _add_loop(
                cond, body, loop_vars, shape_invariants, back_prop, maximum_iterations
            )
    else:
        values = mapped(convert_to_tensor, loop_vars)
        for _ in _count_to(maximum_iterations):
            if not cond(*values):
                break
            values = _as_list(body(*values), len(loop_vars))
        values = packed(loop_vars, leaves_of(values))
    unpacks = in_graph if return_same_structure is None else not return_same_structure
    return values[0] if unpacks and len(values) == 1 else values


def _as_list(returned: object, count: int) -> Any:
    """Return the result of `body` as a list of `count` variables; wrap a single bare variable."""
    is_single = count == 1 and not (isinstance(returned, list | tuple) and len(returned) == 1)
    return [returned] if is_single else returned


def _count_to(limit: Any) -> Iterator[int]:
    """Yield 0 to `limit` - 1, or without end if `limit` is None."""
    return itertools.count() if limit is None else iter(range(int(limit)))


def _add_loop(
    cond: Step,
    body: Step,
    loop_vars: Sequence[object],
    shapes: object,
    back_prop: bool,
    limit: object,
) -> Any:
    """Add the operation of a loop; return the final loop variables in the structure of `loop_vars`.

    `shapes` are the shape invariants; None means the shapes of `loop_vars`. `limit` is the maximum
    number of iterations or None. Raise InvalidTypeError if `body` changes the structure, a dtype or
    one of the shapes.
    """
    graph = get_default_graph()
    start = mapped(lambda leaf: identity(convert_to_tensor(leaf)), loop_vars)
    first = list(leaves_of(start))
    declared = [x.shape for x in first] if shapes is None else _as_invariants(shapes)
    specs = [Output(x.dtype, shape) for x, shape in zip(first, declared, strict=True)]
    proceed = trace_block(graph, lambda *given: cond(*packed(start, iter(given))), specs)
    step = trace_block(
        graph, lambda *given: _as_list(body(*packed(start, iter(given))), len(start)), specs
    )
    check_same_structure([*start], [*step.nest], "loop_vars and what body returns")
    flows = _find_flows(first, step) if back_prop else []
    outputs = []
    for parameter, new_output, shape in zip(step.parameters, step.results, declared, strict=True):
        if not shape.accepts(new_output.shape):
            raise InvalidTypeError(
                f"A loop variable of shape {tuple(shape)} has shape {tuple(new_output.shape)} after"
                " one time; shape_invariants says which sizes change."
            )
        outputs.append(merged_output([parameter, new_output], flows))
    exits = run_by(_run_loop, [proceed, step], [first, limit, back_prop], outputs, "Exit")
    return packed(start, iter(exits))


def _as_invariants(shapes: Any) -> list[Any]:
    """Return the shapes of a nest as a flat list."""
    # A shape is a sequence itself, and recognized by its members.
    is_shape = isinstance(shapes, Shape) or all(isinstance(x, int | None) for x in shapes)
    return [Shape(shapes)] if is_shape else [shape for x in shapes for shape in _as_invariants(x)]


def _run_loop(proceed: Step, step: Step, values: Any, limit: object, back_prop: bool) -> Any:
    """Run condition and body of a loop in a session; return the final values as a list."""
    for _ in _count_to(limit):
        if not proceed(*values)[0]:
            break
        values = step(*values)
    return values if back_prop else [value.detach() for value in values]


def _find_flows(inputs: Iterable[SymbolicTensor], step: Subgraph) -> list[SymbolicTensor]:
    """Return the outer tensors that a gradient of the loop's results reaches."""
    return [*(x for x in inputs if x.is_differentiable()), *flows_of(step, step.results)]


def map_fn(
    fn: Step,
    elems: object,
    dtype: object = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: object = None,
) -> Any:
    """Return `fn(row)` for each row of `elems`, stacked along a new first dimension.

    Args:
        fn: `fn(row)` returns a tensor, or nested lists, tuples and dicts of tensors. `row` has the
            structure of `elems`.
        elems: A tensor, or nested lists, tuples and dicts of tensors, with equal numbers of rows.
        dtype, fn_output_signature: Ignored: dtypes are inferred from `fn`.
        parallel_iterations, back_prop, swap_memory, infer_shape: Ignored.

    Raises:
        InvalidArgumentError: There are no rows; in graph mode raised by a run.
    """
    elems = mapped(convert_to_tensor, elems)
    if executing_eagerly():
        return _map_rows(lambda row: mapped(convert_to_tensor, fn(row)), elems)
    graph = get_default_graph()
    with graph.name_scope(name or "map"):
        body = trace_block(graph, lambda *row: fn(packed(elems, iter(row))), _row_of(elems))
        flows = _find_flows(leaves_of(elems), body)
        outputs = [_output_column(x.dtype, x.shape, elems, flows) for x in body.results]
        step = lambda run_part, given: _map_rows(_as_step(body, run_part), given)  # noqa: E731
        stacked = run_by(step, [body], [elems], outputs, "Map")
        return packed(body.nest, iter(stacked))


def scan(
    fn: Step,
    elems: object,
    initializer: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """Return the value of `foldl` after each row, stacked along a new first dimension.

    The stack has one value per row. Without `initializer`, the first value is the first processed
    row. `reverse` processes the rows from last to first, but stacks the values in row order. If
    there are no rows, the stack has the shape (0, *initializer shape).
    """
    return _add_fold(fn, elems, initializer, True, reverse, name or "scan")


def foldl(
    fn: Step,
    elems: object,
    initializer: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """Return the final `value` after `value = fn(value, row)` for each row of `elems` in order.

    Args:
        fn: `fn(value, row)` returns the next value; `row` has the structure of `elems`.
        elems: A tensor, or nested lists, tuples and dicts of tensors, with equal numbers of rows.
        initializer: The first value, in the structure of `fn`'s result; by default the first row.
        parallel_iterations, back_prop, swap_memory: Ignored.

    Raises:
        InvalidArgumentError: There are neither rows nor an initializer; in graph mode raised by a
            run.
        InvalidTypeError: The structure or a dtype of the value changes.
    """
    return _add_fold(fn, elems, initializer, False, False, name or "foldl")


def foldr(
    fn: Step,
    elems: object,
    initializer: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """Return the result of `foldl` over the rows of `elems` from last to first."""
    return _add_fold(fn, elems, initializer, False, True, name or "foldr")


def _add_fold(
    fn: Step, elems: object, initializer: object, stacks: bool, backwards: bool, name: str
) -> object:
    """Return the last value of a fold; if `stacks`, all values, stacked. See `foldl`."""
    elems = mapped(convert_to_tensor, elems)
    start = None if initializer is None else mapped(convert_to_tensor, initializer)
    if executing_eagerly():
        step = lambda state, row: mapped(convert_to_tensor, fn(state, row))  # noqa: E731
        return _fold_rows(step, elems, start, stacks, backwards)
    graph = get_default_graph()
    with graph.name_scope(name):
        state = elems if start is None else mapped(identity, start)
        first = (
            _row_of(elems)
            if start is None
            else [Output(x.dtype, x.shape) for x in leaves_of(state)]
        )

        def apply_once(*given: object) -> object:
            """Return the next value for the leaves of a value, followed by those of a row."""
            leaves = iter(given)
            return fn(packed(state, leaves), packed(elems, leaves))

        body = trace_block(graph, apply_once, [*first, *_row_of(elems)])
        check_same_structure(state, body.nest, "initializer and what fn returns")
        flows = _find_flows([*leaves_of(elems), *leaves_of(state)], body)
        pairs = zip(body.parameters[: len(first)], body.results, strict=True)
        outputs = [merged_output(pair, flows) for pair in pairs]
        if stacks:
            outputs = [_output_column(x.dtype, x.shape, elems, flows) for x in outputs]
        arguments = [elems, None if start is None else state]
        folded = run_by(
            lambda run_part, rows, begin: _fold_rows(
                _as_step(body, run_part), rows, begin, stacks, backwards
            ),
            [body],
            arguments,
            outputs,
            "Fold",
        )
        return packed(body.nest, iter(folded))


def _map_rows(step: Step, elems: object) -> Any:
    """Return the results of `step` for each row, stacked."""
    return _stack_nests([step(row) for row in _split_rows(elems)])


def _fold_rows(step: Step, elems: object, start: object, stacks: bool, backwards: bool) -> Any:
    """Repeat `start = step(start, row)`; return the last value, or all, stacked, if `stacks`.

    If `start` is None, the first processed row takes its place. `backwards` processes the last row
    first, and stacks in row order.
    """
    rows = _split_rows(elems)
    if backwards:
        rows.reverse()
    values = []
    if start is None:
        if not rows:
            raise InvalidArgumentError("There are no rows, and no initializer.")
        start = rows.pop(0)
        values.append(start)
    for row in rows:
        start = step(start, row)
        values.append(start)
    if backwards:
        values.reverse()
    if stacks and not values:
        return mapped(lambda leaf: leaf.expand(0, *leaf.shape), start)
    return _stack_nests(values) if stacks else start


def _split_rows(elems: object) -> list[object]:
    """Return one nest per row of the tensors in `elems`."""
    columns = (column.unbind() for column in leaves_of(elems))
    return [packed(elems, iter(row)) for row in zip(*columns, strict=True)]


def _stack_nests(nests: Sequence[object]) -> object:
    """Return a nest of tensors stacked from equal nests."""
    if not nests:
        raise InvalidArgumentError("There are no rows, so what is made of each is not known.")
    columns = zip(*(leaves_of(nest) for nest in nests), strict=True)
    return packed(nests[0], (torch.stack(column) for column in columns))


def _as_step(body: Subgraph, run_part: Step) -> Step:
    """Return `run_part`, which takes and returns flat sequences, as a function of nests."""
    return lambda *nests: packed(body.nest, iter(run_part(*leaves_of(nests))))


def _row_of(elems: object) -> list[Output]:
    """Return the static descriptions of the leaves of one row."""
    return [Output(x.dtype, x.shape[1:]) for x in leaves_of(elems)]


def _output_column(dtype: Any, shape: Any, elems: Any, flows: Sequence[SymbolicTensor]) -> Output:
    """Return the static description of one value per row, stacked."""
    counts = [x.shape[0] for x in leaves_of(elems) if x.shape]
    count = next((size for size in counts if size is not None), None)
    # An `Output` has None in place of `UNKNOWN`.
    column_shape = None if Shape(shape) is UNKNOWN else (count, *shape)
    return Output(dtype, column_shape, tuple(flows))

"""`cond` and `case`: call one of several functions, chosen by scalar tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from thalweg._base.execution_context import executing_eagerly
from thalweg._base.showing import show_value
from thalweg._graph.default_graph import control_dependencies, get_default_graph
from thalweg._graph.operation import must_hold
from thalweg._graph.ops import convert_to_tensor
from thalweg._graph.subgraphs import (
    check_same_structure,
    flows_of,
    merged_output,
    run_by,
    trace_block,
    wrap_outputs,
)
from thalweg.errors import InvalidArgumentError, InvalidTypeError

Branch = Callable[[], Any]


def cond(
    pred: object,
    true_fn: Branch | None = None,
    false_fn: Branch | None = None,
    *,
    strict: bool = False,
    name: str | None = None,
    fn1: Branch | None = None,
    fn2: Branch | None = None,
) -> Any:
    """Return `true_fn()` if `pred` is true, otherwise `false_fn()`.

    In graph mode both functions are called once, now, and add two branches to the graph. Each run
    executes only one branch. Outer tensors used by either branch are computed first.

    Args:
        pred: A number or tensor of one element.
        true_fn: Returns a tensor, an operation, or nested lists, tuples and dicts of these.
        false_fn: Returns a result of equal structure and dtypes.
        strict: In graph mode, False returns the element of a list or tuple of length 1 instead of
            the list; True returns the list.
        fn1, fn2: The old names of `true_fn` and `false_fn`.

    Returns:
        In graph mode a structure of symbolic tensors; a bool tensor replaces an operation. Tensors
        used only by the skipped branch get zeros as gradients.

    Raises:
        InvalidTypeError: A function is missing or returns None, structures or dtypes differ, or
            `pred` is a Python bool in graph mode.
    """
    then, otherwise = fn1 if true_fn is None else true_fn, fn2 if false_fn is None else false_fn
    for function, argument in ((then, "true_fn"), (otherwise, "false_fn")):
        if not callable(function):
            raise InvalidTypeError(f"{argument} must be callable, not {show_value(function)}.")
    if executing_eagerly():
        return (then if pred else otherwise)()  # pyright: ignore
    # A Python bool would fix the branch for all runs, by mistake in most programs.
    if isinstance(pred, bool):
        raise InvalidTypeError("pred must not be a Python bool: use if, or a tensor.")
    graph = get_default_graph()
    with graph.name_scope(name or "cond"):
        predicate = convert_to_tensor(pred)
        branches = [trace_block(graph, function) for function in (then, otherwise)]  # pyright: ignore
        check_same_structure(branches[0].nest, branches[1].nest, "What true_fn and false_fn return")
        columns = zip(*(branch.results for branch in branches), strict=True)
        outputs = [
            merged_output(pair, [x for branch in branches for x in flows_of(branch, pair)])
            for pair in columns
        ]
        merged = run_by(_run_branch, branches, [predicate], outputs, "Merge")
    nest = wrap_outputs(branches[0].nest, merged)
    return nest if strict else _unpack_single(nest)


def _run_branch(then: Branch, otherwise: Branch, pred: object) -> Any:
    """Return `then()` if `pred` is true, else `otherwise()`."""
    return then() if pred else otherwise()


def case(
    pred_fn_pairs: Mapping[object, Branch] | Sequence[tuple[object, Branch]],
    default: Branch | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str | None = "case",
) -> Any:
    """Return `function()` for the first condition that is true, or `default()` if none is true.

    In graph mode all functions are called once, now; the result is as for `cond`.

    Args:
        pred_fn_pairs: (condition, function) pairs, or {condition: function}.
        default: Optional. A function without arguments.
        exclusive: True to raise an error if several conditions are true.
        strict: As in `cond`.

    Raises:
        InvalidArgumentError: There are no pairs, no condition is true and there is no default, or
            several exclusive conditions are true. In graph mode, conditions are checked by a run.
    """
    pairs = list(pred_fn_pairs.items() if isinstance(pred_fn_pairs, Mapping) else pred_fn_pairs)
    if not pairs:
        raise InvalidArgumentError("case needs at least one pair of a condition and a function.")
    in_graph = not executing_eagerly()
    with get_default_graph().name_scope(name or "case") if in_graph else nullcontext():
        preds = [convert_to_tensor(pred) for pred, _ in pairs]
        checks = []
        if exclusive:
            message = "case: more than one of these conditions holds."
            checks.append(must_hold(lambda *given: sum(map(bool, given)) <= 1, preds, message))
        if default is None:
            message = "case: none of these conditions holds, and there is no default."
            checks.append(must_hold(lambda *given: any(map(bool, given)), preds, message))
        chain = list(zip(preds, (function for _, function in pairs), strict=True))
        # Without a default, the last function needs no test of its own: `checks` did that.
        fallback = chain.pop()[1] if default is None else default
        for pred, function in reversed(chain):
            fallback = partial(cond, pred, function, fallback, strict=True)
        with control_dependencies(checks) if in_graph else nullcontext():
            nest = fallback()
    return nest if strict or not in_graph else _unpack_single(nest)


def _unpack_single(nest: object) -> object:
    """Return the only element of a list or tuple; return anything else unchanged."""
    return nest[0] if isinstance(nest, list | tuple) and len(nest) == 1 else nest

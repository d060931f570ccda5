"""Composition of two formulas, and evaluation of what is composed on arrays and tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from thalweg._base.composed_formula import ComposedFormula
from thalweg._base.wrapped_formula import StepMeasure, WrappedStepFormula
from thalweg._engines.formula_graph import (
    FormulaGraph,
    Node,
    in_order,
    lower_moves,
    rewrite,
    stream_nodes,
)
from thalweg._engines.parsed_formula import place_of
from thalweg.errors import RuleError

_python: Any = operator  # its functions have no types
_ON_VALUES: dict[str, Callable[..., Any]] = {
    "+": _python.add, "-": _python.sub, "*": _python.mul, "/": _python.truediv,
    "<": _python.lt, "<=": _python.le, ">": _python.gt, ">=": _python.ge,
    "==": _python.eq, "!=": _python.ne, "&": _python.and_, "|": _python.or_, "neg": _python.neg,
}  # fmt: skip
_AROUND = ("var", "grad", "base", "step")  # what a formula around a step takes


def compose(formula: ComposedFormula, first: FormulaGraph, second: FormulaGraph) -> FormulaGraph:
    """Return the graph of a composed formula.

    Args:
        formula: A `ChainedFormula` or a `WrappedStepFormula`.
        first, second: The graphs of its two.

    Raises:
        RuleError: The second does not fit around the step of the first; names it.
    """
    if isinstance(formula, WrappedStepFormula):
        return _wrap(formula, first, second)
    return _chain(first, second)


def _chain(first: FormulaGraph, then: FormulaGraph) -> FormulaGraph:
    """Return one formula and then another, as `ChainedFormula` describes it."""
    more = stream_nodes(len(then.positional) - 1, len(first.positional))
    made = then.apply((first.results[0], *more))
    if more and len(made) == 1:
        made.insert(0, first.results[0])
    return FormulaGraph(
        (*first.positional, *then.positional[1:]),
        tuple(dict.fromkeys((*first.scalars, *then.scalars))),
        tuple(lower_moves((made[0], *first.results[1:], *made[1:]))),
    )


def _wrap(formula: WrappedStepFormula, own: FormulaGraph, how: FormulaGraph) -> FormulaGraph:
    """Return one formula around the step of another, as `WrappedStepFormula` describes it."""
    if how.positional != _AROUND or len(how.steps) != 1:
        raise RuleError(
            f"{place_of(formula.how)} lies around a step: it takes {', '.join(_AROUND)} and"
            " scalars, and returns one value."
        )
    var, grad = stream_nodes(2)
    move = next((node for node in in_order(own.steps) if node.op == "moved"), None)
    base, step = (var, own.results[0] - var) if move is None else move.args
    if formula.decays and base.is_stream(0):
        raise RuleError(
            f"{place_of(formula.formula)} has no decay beside its step, as that which returns"
            " `moved(var * share, step)`."
        )
    (made,) = how.apply((var, grad, base, step))
    scalars = tuple(dict.fromkeys((*own.scalars, *how.scalars)))
    if isinstance(formula, StepMeasure):
        read = {node.args[0] for node in in_order([made]) if node.op == "scalar"}
        scalars = tuple(name for name in scalars if name in read)
        return FormulaGraph(own.positional, scalars, (made,))
    steps = (made, *own.steps[1:])
    if move is not None:
        steps = tuple(rewrite(own.steps, lambda node: made if node is move else None))
    return FormulaGraph(own.positional, scalars, steps)


def evaluate(
    graph: FormulaGraph,
    namespace: Mapping[str, Any],
    literal: Any,
    *values: Any,
    **scalars: Any,
) -> tuple[Any, ...]:
    """Return the results of a graph; intermediate values are dropped after their last use."""
    nodes, known = in_order(graph.results), dict[Node, Any]()
    last = {each: node for node in nodes for each in (node, *node.inputs)}
    last |= dict.fromkeys(graph.results)
    given = {"stream": values.__getitem__, "scalar": scalars.__getitem__, "const": literal}
    functions = {**namespace, **_ON_VALUES, **given}
    for node in nodes:
        args = [known[each] if isinstance(each, Node) else each for each in node.args]
        known[node] = functions[node.op](*args)
        for each in {*node.inputs}:
            if last[each] is node:
                del known[each]
    return tuple(known[result] for result in graph.results)

"""Composition of two formulas, and evaluation of composed formulas on arrays and tensors."""

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
from thalweg._engines.formula_source import place_of
from thalweg.errors import RuleError

_python: Any = operator  # without the types of its functions
_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": _python.add, "-": _python.sub, "*": _python.mul, "/": _python.truediv,
    "<": _python.lt, "<=": _python.le, ">": _python.gt, ">=": _python.ge,
    "==": _python.eq, "!=": _python.ne, "&": _python.and_, "|": _python.or_, "neg": _python.neg,
}  # fmt: skip
# Positional parameters of a formula that wraps a step.
_WRAPPER_PARAMETERS = ("var", "grad", "base", "step")


def compose(formula: ComposedFormula, first: FormulaGraph, second: FormulaGraph) -> FormulaGraph:
    """Return the graph of a composed formula.

    Args:
        formula: A `ChainedFormula` or a `WrappedStepFormula`.
        first, second: The graphs of the two formulas.

    Raises:
        RuleError: The second formula cannot wrap the step of the first formula.
    """
    if isinstance(formula, WrappedStepFormula):
        return _wrap(formula, first, second)
    return _chain(first, second)


def _chain(first: FormulaGraph, second: FormulaGraph) -> FormulaGraph:
    """Return the graph of a `ChainedFormula`: `second` reads the variable that `first` returns."""
    var = first.results[0]
    values = stream_nodes(len(second.positional) - 1, len(first.positional))
    results = second.apply((var, *values))
    if values and len(results) == 1:
        results.insert(0, var)
    return FormulaGraph(
        (*first.positional, *second.positional[1:]),
        tuple(dict.fromkeys((*first.scalars, *second.scalars))),
        tuple(lower_moves((results[0], *first.results[1:], *results[1:]))),
    )


def _wrap(formula: WrappedStepFormula, inner: FormulaGraph, outer: FormulaGraph) -> FormulaGraph:
    """Return the graph of a `WrappedStepFormula`.

    `outer` replaces the call `moved(base, step)` in `inner`, and reads `base` and `step`. Without a
    call, `base` is the variable, and `step` is the variable's change.
    """
    if outer.positional != _WRAPPER_PARAMETERS or len(outer.outputs) != 1:
        raise RuleError(
            f"{place_of(formula.how)} lies around a step: it takes"
            f" {', '.join(_WRAPPER_PARAMETERS)} and scalars, and returns one value."
        )
    var, grad = stream_nodes(2)
    move = next((node for node in in_order(inner.outputs) if node.op == "moved"), None)
    base, step = (var, inner.results[0] - var) if move is None else move.args
    if formula.decays and base.is_stream(0):
        raise RuleError(
            f"{place_of(formula.formula)} has no decay beside its step, as that which returns"
            " `moved(var * share, step)`."
        )
    (wrapped,) = outer.apply((var, grad, base, step))
    scalars = tuple(dict.fromkeys((*inner.scalars, *outer.scalars)))
    if isinstance(formula, StepMeasure):
        read = {node.args[0] for node in in_order([wrapped]) if node.op == "scalar"}
        scalars = tuple(name for name in scalars if name in read)
        return FormulaGraph(inner.positional, scalars, (wrapped,))
    outputs = (wrapped, *inner.outputs[1:])
    if move is not None:
        outputs = tuple(rewrite(inner.outputs, lambda node: wrapped if node is move else None))
    return FormulaGraph(inner.positional, scalars, outputs)


def bind_graph(formula_graph: FormulaGraph, namespace: Mapping[str, Any], literal: Any) -> Any:
    """Return a function `f(*values, **scalars)` that returns the tuple of a graph's results.

    The function drops each intermediate value after its last use.

    Args:
        namespace: {name: function} of an engine.
        literal: `literal(value)` returns a float as a number of the engine's type.
    """
    last_use = {arg: node for node in formula_graph.nodes for arg in (node, *node.inputs)}
    last_use |= dict.fromkeys(formula_graph.results)
    unused = {
        node: {arg for arg in node.inputs if last_use[arg] is node} for node in formula_graph.nodes
    }
    functions = {**namespace, **_OPERATORS, "const": literal}

    def evaluate(*values: Any, **scalars: Any) -> tuple[Any, ...]:
        """Return the results of the graph; drop each value after its last use."""
        inputs = {"stream": values.__getitem__, "scalar": scalars.__getitem__}
        results = dict[Node, Any]()
        for node in formula_graph.nodes:
            args = [results[arg] if isinstance(arg, Node) else arg for arg in node.args]
            results[node] = (inputs.get(node.op) or functions[node.op])(*args)
            for arg in unused[node]:
                del results[arg]
        return tuple(results[result] for result in formula_graph.results)

    return evaluate

"""Read formulas of rules as graphs of operations, and as functions over any kind of number."""

from __future__ import annotations

import ast
import functools
import operator
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from thalweg._base.composed_formula import ComposedFormula
from thalweg._base.locks import importing
from thalweg._engines.formula_graph import FormulaGraph, Node, make_const, make_node, stream_nodes
from thalweg._engines.formula_rewriter import ALL_FUNCTIONS, FormulaRewriter, HelperFunctions
from thalweg._engines.formula_source import (
    FUNCTION_PREFIX,
    LITERAL,
    LOCAL_PREFIX,
    FormulaSource,
    count_of,
    parse_definition,
    place_of,
)
from thalweg.errors import RuleError


def _make_backward_move(base: Node, step: Node) -> Node:
    return make_node("moved", base, -step)


_GRAPH_FUNCTIONS = ("square", "moved", "mean_over_rows", "mean_over_columns")
# Functions that build nodes of a graph.
_NODE_MAKERS: dict[str, Callable[..., Node]] = {
    **{name: functools.partial(make_node, name) for name in (*ALL_FUNCTIONS, *_GRAPH_FUNCTIONS)},
    "moved_back": _make_backward_move,
}
_python: Any = operator  # without the types of its functions
# Steps of the variable where a formula computes numbers.
_MOVES: dict[str, Callable[..., Any]] = {"moved": _python.add, "moved_back": _python.sub}


class Composed:
    """Base class of formulas that have no source; they build their graph in `compose`.

    Attributes:
        is_pass: True if only later passes read the results.
    """

    is_pass = False
    __qualname__: str

    def __call__(self, *values: Any, **scalars: Any) -> Any:
        raise RuleError(f"{self.__qualname__} is run by engines alone.")

    def compose(self) -> FormulaGraph:
        """Return the graph of the formula."""
        raise NotImplementedError


# By the function, and whether it is the formula of a `FusedStage`.
_sources: weakref.WeakKeyDictionary[Any, dict[bool, FormulaSource]] = weakref.WeakKeyDictionary()


def read_source(function: Any, is_stage: bool = False) -> FormulaSource:
    """Return the cached, checked source of a formula.

    Args:
        function: The formula.
        is_stage: True for the formula of a `FusedStage`, of which a `functools.partial` may bind
            scalars to numbers.

    Raises:
        RuleError: The formula is not straight arithmetic (the message names formula and line), or a
            bound name is not a scalar of the formula.
    """
    if is_stage and isinstance(function, functools.partial):
        return _bind_constants(read_source(function.func, is_stage=True), function)
    sources = _sources.get(function, {}) if isinstance(function, types.FunctionType) else {}
    if is_stage not in sources:
        sources[is_stage] = _parse_source(function, is_stage)
        _sources[function] = sources
    return sources[is_stage]


def _parse_source(function: Any, is_stage: bool) -> FormulaSource:
    """Check and rewrite the source of a formula; see `read_source`, which caches the result."""
    node = parse_definition(function)
    helpers = HelperFunctions()
    rewriter = FormulaRewriter(function, helpers, is_stage)
    parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    rewriter.conditions = {parameter.arg: False for parameter in parameters}
    body, returned = rewriter.write_body(node)
    elements = returned.elts if isinstance(returned, ast.Tuple) else [returned]
    results = tuple(rewriter.as_number(element) for element in elements)
    rewriter.check_move(node, body, results[0])
    return FormulaSource(
        positional=tuple(arg.arg for arg in [*node.args.posonlyargs, *node.args.args]),
        scalars=tuple(arg.arg for arg in node.args.kwonlyargs),
        body=tuple(body),
        results=results,
        helpers=tuple(helpers.definitions),
        filename=function.__code__.co_filename,
    )


def _bind_constants(source: FormulaSource, bound: Any) -> FormulaSource:
    """Return a source that first assigns the numbers that a `functools.partial` binds.

    Raises:
        RuleError: A keyword is not a scalar of the formula.
    """
    body: list[ast.Assign] = []
    for name, value in bound.keywords.items():
        if name not in source.scalars:
            raise RuleError(f"{place_of(bound)} has no scalar {name} to bind.")
        call = ast.Call(ast.Name(LITERAL, ast.Load()), [ast.Constant(float(value))], [])
        body.append(ast.Assign([ast.Name(LOCAL_PREFIX + name, ast.Store())], call))
    scalars = tuple(name for name in source.scalars if name not in bound.keywords)
    return replace(source, scalars=scalars, body=(*body, *source.body))


_graphs: weakref.WeakKeyDictionary[Any, FormulaGraph] = weakref.WeakKeyDictionary()


def trace_formula(function: Any) -> FormulaGraph:
    """Return the graph of a formula; the first call for a formula builds the graph.

    Raises:
        RuleError: The formula is not straight arithmetic. The message names formula and line.
    """
    is_formula = isinstance(function, types.FunctionType | ComposedFormula | Composed)
    graph = _graphs.get(function) if is_formula else None
    if graph is None:
        if isinstance(function, ComposedFormula):
            with importing:
                from thalweg._engines.formula_composition import compose
            graph = compose(function, *map(trace_formula, function.both))
        elif isinstance(function, Composed):
            graph = function.compose()
        else:
            graph = build_graph(function)
        _graphs[function] = graph
    return graph


def build_graph(function: Any, is_stage: bool = False) -> FormulaGraph:
    """Build a new graph of a function; `trace_formula` returns a cached graph instead."""
    source = read_source(function, is_stage)
    values = stream_nodes(len(source.positional))
    scalars = {name: make_node("scalar", name) for name in source.scalars}
    outputs = bind_formula(function, _NODE_MAKERS, make_const, is_stage)(*values, **scalars)
    return FormulaGraph(source.positional, source.scalars, outputs)


def bind_formula(
    formula: Any, namespace: Mapping[str, Any], literal: Any, is_stage: bool = False
) -> Any:
    """Return a function `f(*values, **scalars)` that returns the tuple of a formula's results.

    Args:
        namespace: {name: function} of the engine.
        literal: `literal(value)` returns a float as a number of the engine's type.
        is_stage: True for the formula of a `FusedStage`.
    """
    if isinstance(formula, ComposedFormula | Composed):
        with importing:
            from thalweg._engines.formula_composition import bind_graph
        return bind_graph(trace_formula(formula), namespace, literal)
    source = read_source(formula, is_stage)
    names = (*source.positional, *source.scalars)
    parameters = [ast.arg(LOCAL_PREFIX + name) for name in names]
    definition = ast.FunctionDef(
        name="formula",
        args=ast.arguments([], parameters, None, [], [], None, []),
        body=[*source.body, ast.Return(ast.Tuple(list(source.results), ast.Load()))],
        decorator_list=[],
    )
    module = ast.fix_missing_locations(ast.Module([*source.helpers, definition], []))
    functions = {**_MOVES, **namespace}
    outer = {FUNCTION_PREFIX + name: function for name, function in functions.items()}
    outer[LITERAL] = literal
    exec(compile(module, source.filename, "exec"), outer)
    function = outer["formula"]

    def bound(*values: Any, **scalars: Any) -> Any:
        return function(*values, **{LOCAL_PREFIX + name: scalars[name] for name in scalars})

    return bound


def check_counts(function: Any, has_gradient: bool, slots: int) -> None:
    """Raise RuleError unless a formula takes and returns the variable and all slots of its rule.

    Args:
        function: The formula, `(var, *slots)`, or `(var, grad, *slots)` if `has_gradient`.
        slots: The number of slots of the rule.
    """
    count, names = 1 + has_gradient + slots, "var, grad, *slots" if has_gradient else "var, *slots"
    requirement = f"with {count_of(slots, 'slot')} it must take {count} ({names}) and return"
    raise_unless_counts(function, count, 1 + slots, f"{requirement} {1 + slots} (var, *slots)")


def raise_unless_counts(function: Any, inputs: int, results: int, requirement: str) -> None:
    """Raise RuleError unless a formula takes and returns these numbers of values.

    Args:
        requirement: The end of the error: the values that the formula must take and return.
    """
    graph = trace_formula(function)
    if (len(graph.positional), len(graph.outputs)) != (inputs, results):
        raise RuleError(
            f"{place_of(function)} takes {count_of(len(graph.positional), 'value')} and returns"
            f" {len(graph.outputs)}; {requirement}."
        )

"""Formulas of fused stages, which compute numbers of rows, columns or whole matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from thalweg import formula
from thalweg._base.fused_stage import FusedStage, mean_over_columns, mean_over_rows
from thalweg._engines.formula_graph import INFIX, FormulaGraph, Node
from thalweg._engines.formula_parser import bind_formula, build_graph
from thalweg._engines.formula_source import count_of, place_of
from thalweg._engines.layout import compute_dtype
from thalweg._engines.numpy_functions import NUMPY, square
from thalweg.errors import RuleError
from thalweg.formula import Rule

# Names of the sizes that any stage over rows and columns may take.
SIZES = ("row_count", "column_count", "element_count")

_KIND_TEXTS = {
    "row": "a number of each row",
    "column": "a number of each column",
    "matrix": "one number of the matrix",
    "": "a scalar",
}
MEANS = {"mean_over_rows": "row", "mean_over_columns": "column"}
_MEAN_FUNCTIONS = {mean.__name__: mean for mean in (mean_over_rows, mean_over_columns)}
# Operations around a node that messages show; nodes are shared, so the full text can be huge.
_MAX_DEPTH = 4
_TORCH_NAMES = ("sqrt", "absolute", "sign", "where", "maximum", "minimum", "wide", "narrow")
_TORCH = {"square": square, **{name: getattr(formula, name) for name in _TORCH_NAMES}}


class LineFormula(NamedTuple):
    """Formula of a fused stage.

    Attributes:
        graph: The formula, which takes all values by name.
        kinds: {node of the graph: axis of its value}: "row", "column", "matrix", or "" for a
            scalar.
        scalars: Names of the parameters that are scalars.
    """

    graph: FormulaGraph
    kinds: Mapping[Node, str]
    scalars: tuple[str, ...]


@lru_cache(256)
def bind_stage(
    function: Callable[..., Any], kind: torch.dtype, device: torch.device | None
) -> Callable[..., tuple[Any, ...]]:
    """Return the formula of a fused stage as a function of tensors, or of NumPy arrays.

    Args:
        kind: The dtype of literals.
        device: The device of tensors. None for a function of arrays, which is faster on the host.
    """
    if device is None:
        return bind_formula(
            function, {**NUMPY, **_MEAN_FUNCTIONS}, compute_dtype(kind), is_stage=True
        )

    literal = partial(torch.full, (), dtype=kind, device=device)
    return bind_formula(function, {**_TORCH, **_MEAN_FUNCTIONS}, literal, is_stage=True)


@lru_cache(256)
def read_stage(rule: Rule, stage: FusedStage) -> LineFormula:
    """Return the checked formula of a fused stage of a rule.

    Raises:
        RuleError: The formula is not straight arithmetic, or takes or returns anything but scalars
            and vectors over rows or columns.
    """
    graph, kinds = build_graph(stage.function, is_stage=True), dict[Node, str]()
    try:
        _check_parameters(rule, graph)
        for node in graph.nodes:
            kinds[node] = _infer_kind(rule, node, [kinds[arg] for arg in node.inputs])
        _check_results(rule, stage, graph, kinds)
    except RuleError as error:
        raise RuleError(f"FusedStage {place_of(stage.function)} {error}.") from None
    scalars = tuple(name for name in graph.scalars if name not in rule.vectors)
    return LineFormula(graph, kinds, scalars)


def _check_parameters(rule: Rule, formula_graph: FormulaGraph) -> None:
    """Raise RuleError unless all parameters are scalars, or vectors over rows or columns."""
    if formula_graph.positional:
        raise RuleError(f"takes {formula_graph.positional[0]} by position: write it after *")
    for name in formula_graph.scalars:
        if name in rule.vectors:
            continue
        if name in rule.seen or name in rule.made:
            raise RuleError(
                f"asks for {name}, which is of no row and no column: a Stage may ask for it"
            )
        if name in SIZES and name in (*(hyper.name for hyper in rule.hypers), *rule.powers):
            raise RuleError(f"asks for {name}, which is a size, and a scalar of the rule")


def _infer_kind(rule: Rule, node: Node, arg_kinds: list[str]) -> str:
    """Return the kind of a node's value: "row", "column" or "matrix" for a number of each, or "".

    "" is the kind of a scalar. A mean over rows or columns has the kind "matrix". The kind of other
    operations is the first of "row", "column", "matrix" and "" that an argument has.

    Args:
        arg_kinds: The kinds of the node's arguments.

    Raises:
        RuleError: The operation is exp, log or power. Or arguments have the kinds "row" and
            "column". Or a mean over rows has another argument than "row", or a mean over columns
            another argument than "column".
    """
    if node.op == "scalar":
        return rule.vectors.get(node.args[0], "")
    if node.op in ("exp", "log", "power"):
        problem, advice = f"calls {node.op}", "have"
        if node.op == "power":
            problem, advice = "raises to a power", "write products and sqrt, or have"
        raise RuleError(
            f"{problem}, whose last bits differ between torch and kernels; {advice} `prepare`"
            " compute it of scalars, or a Stage of rows and columns"
        )
    if node.op in MEANS:
        if arg_kinds != [MEANS[node.op]]:
            raise RuleError(
                f"gives {node.op} {_KIND_TEXTS[arg_kinds[0]]}, where it must be"
                f" {_KIND_TEXTS[MEANS[node.op]]}"
            )
        return "matrix"
    if {"row", "column"} <= {*arg_kinds}:
        raise RuleError(
            f"mixes rows and columns in `{_show(node)}`, which makes a number of each element:"
            " write that in `update` or in a measure, or take a mean of either first"
        )
    return next((kind for kind in ("row", "column", "matrix") if kind in arg_kinds), "")


def _show(node: Node, is_argument: bool = False, depth: int = _MAX_DEPTH) -> str:
    """Return the formula of a node for messages, with "..." for deeply nested operations.

    Args:
        is_argument: True to put an infix operation in parentheses.
        depth: The number of nested operations to show.
    """
    if node.op in ("scalar", "const"):
        return str(node.args[0])
    if not depth:
        return "..."
    args = [_show(arg, node.op in (*INFIX, "neg"), depth - 1) for arg in node.inputs]
    if node.op in INFIX:
        text = f"{args[0]} {node.op} {args[1]}"
        return f"({text})" if is_argument else text
    return f"-{args[0]}" if node.op == "neg" else f"{node.op}({', '.join(args)})"


def _check_results(
    rule: Rule, stage: FusedStage, formula_graph: FormulaGraph, node_kinds: Mapping[Node, str]
) -> None:
    """Raise RuleError unless the results match the names and the axes of `stage.makes`."""
    if len(formula_graph.results) != len(stage.makes):
        count, names = count_of(len(formula_graph.results), "value"), ", ".join(stage.makes)
        raise RuleError(f"returns {count}, and makes {names}")
    for name, result in zip(stage.makes, formula_graph.results, strict=True):
        expected_kind = rule.vectors.get(name)
        if expected_kind is None:
            raise RuleError(
                f"makes {name}, which is neither made by a Measure of rows or columns nor a"
                ' slot per="row" or per="column"; it changes these alone'
            )
        if name not in formula_graph.scalars:
            raise RuleError(f"makes {name}, which it must take, too: {name} after *")
        if node_kinds[result] != expected_kind:
            raise RuleError(
                f"returns for {name} {_KIND_TEXTS[node_kinds[result]]}, where it must return"
                f" {_KIND_TEXTS[expected_kind]}"
            )

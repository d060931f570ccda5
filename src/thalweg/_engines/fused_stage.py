"""The formula of a fused stage: statements, each of what rows, columns or whole matrices have."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from thalweg import formula
from thalweg._base.fused_stage import FusedStage, mean_over_columns, mean_over_rows
from thalweg._engines.formula_parser import (
    FUNCTION_PREFIX,
    LITERAL,
    LOCAL_PREFIX,
    bind_formula,
    count_of,
    place_of,
    read_source,
)
from thalweg._engines.layout import compute_dtype
from thalweg._engines.numpy_functions import NUMPY, square
from thalweg.errors import RuleError
from thalweg.formula import Rule

# What any stage over rows and columns is given of their sizes.
SIZES = ("row_count", "column_count", "element_count")

_WHAT = {
    "row": "a number of each row",
    "column": "a number of each column",
    "matrix": "one number of the matrix",
    "": "a scalar",
}
# What names and numbers of a formula have around them.
_MARKS, _LITERALS = (
    re.compile(rf"\b({LOCAL_PREFIX}|{FUNCTION_PREFIX})"),
    re.compile(rf"{LITERAL}\((.*?)\)"),
)
_OTHERS = {FUNCTION_PREFIX + name for name in ("exp", "log", "power")}
_MEANS = {
    f"{FUNCTION_PREFIX}mean_over_rows": "row",
    f"{FUNCTION_PREFIX}mean_over_columns": "column",
}


_OF_LINES = {each.__name__: each for each in (mean_over_rows, mean_over_columns)}
_TORCH: dict[str, Callable[..., Any]] = {
    "square": square,
    **{
        each.__name__: each
        for each in (
            formula.sqrt, formula.absolute, formula.sign, formula.where, formula.maximum,
            formula.minimum, formula.wide, formula.narrow,
        )
    },
}  # fmt: skip


class Statement(NamedTuple):
    """A name, and what it is given.

    Attributes:
        name: Given to nothing else.
        of: What it is a number of: a "row", a "column", a "matrix", or "" for a scalar.
        value: An expression of scalars, `LOCAL_PREFIX` before their names, and of names before it.
        over: What `value`, a name, is averaged over: "row" or "column"; "" if it is not.
    """

    name: str
    of: str
    value: ast.expr
    over: str = ""


class LineFormula(NamedTuple):
    """What a fused stage does.

    Attributes:
        statements: In order.
        given: For each name that it asks for, but scalars, the name in statements, and what it is
            of.
        scalars: The scalars that it asks for.
        results: The names in statements of what it makes.
        helpers: The helper functions that statements call.
    """

    statements: tuple[Statement, ...]
    given: Mapping[str, tuple[str, str]]
    scalars: tuple[str, ...]
    results: tuple[str, ...]
    helpers: tuple[ast.FunctionDef, ...]


@lru_cache(256)
def bind_stage(
    function: Callable[..., Any], kind: torch.dtype, device: torch.device | None
) -> Callable[..., tuple[Any, ...]]:
    """The formula over tensors of a device, or over arrays, which take a fraction of the time.

    Its own numbers are of their type, too, as in kernels.
    """
    if device is None:
        return bind_formula(function, {**NUMPY, **_OF_LINES}, compute_dtype(kind), of_lines=True)

    def literal(value: float) -> Tensor:
        return torch.full((), value, dtype=kind, device=device)

    return bind_formula(function, {**_TORCH, **_OF_LINES}, literal, of_lines=True)


@lru_cache(256)
def read_stage(rule: Rule, stage: FusedStage) -> LineFormula:
    """The formula of a fused stage of a rule.

    Raises:
        RuleError: It is none, or asks for what has no place in it.
    """
    return _Reader(rule, stage).formula


class _Reader(ast.NodeTransformer):
    """Splits a formula in statements of one kind each.

    Attributes:
        formula: What has been read.
    """

    def __init__(self, rule: Rule, stage: FusedStage) -> None:
        self._stage = stage
        own = read_source(stage.function, of_lines=True)
        if own.positional:
            raise self._refuse(f"takes {own.positional[0]} by position: write it after *")
        self._names: dict[str, tuple[str, str]] = {}  # of the formula: the statement's, and of what
        self._statements: list[Statement] = []
        scalars: list[str] = []
        for name in own.scalars:
            if name in rule.vectors:
                self._names[LOCAL_PREFIX + name] = f"given_{name}", rule.vectors[name]
            elif name in rule.seen or name in rule.made:
                raise self._refuse(
                    f"asks for {name}, which is of no row and no column: a Stage may ask for it"
                )
            elif name in SIZES and name in (*(each.name for each in rule.hypers), *rule.powers):
                raise self._refuse(f"asks for {name}, which is a size, and a scalar of the rule")
            else:
                self._names[LOCAL_PREFIX + name] = LOCAL_PREFIX + name, ""
                scalars.append(name)
        given = {
            name: self._names[LOCAL_PREFIX + name] for name in own.scalars if name not in scalars
        }
        for helper in own.helpers:
            self._check_functions(helper)
        for each in own.body:
            target = cast("ast.Name", each.targets[0]).id
            self._names[target] = self._state(each.value)
        if len(own.results) != len(stage.makes):
            names = ", ".join(stage.makes)
            raise self._refuse(f"returns {count_of(len(own.results), 'value')}, and makes {names}")
        results: list[str] = []
        for name, value in zip(stage.makes, own.results, strict=True):
            made, of = self._state(value)
            wanted = rule.vectors.get(name)
            if wanted is None:
                raise self._refuse(
                    f"makes {name}, which is neither made by a Measure of rows or columns nor a"
                    ' slot per="row" or per="column"; it changes these alone'
                )
            if name not in given:
                raise self._refuse(f"makes {name}, which it must take, too: {name} after *")
            if of != wanted:
                raise self._refuse(
                    f"returns for {name} {_WHAT[of]}, where it must return {_WHAT[wanted]}"
                )
            results.append(made)
        self.formula = LineFormula(
            tuple(self._statements), given, tuple(scalars), tuple(results), own.helpers
        )

    def _refuse(self, why: str) -> RuleError:
        return RuleError(f"FusedStage {place_of(self._stage.function)} {why}.")

    def _check_functions(self, tree: ast.AST) -> None:
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for name in sorted(names & _OTHERS):
            plain = name.removeprefix(FUNCTION_PREFIX)
            called, instead = f"calls {plain}", "have"
            if plain == "power":
                called, instead = "raises to a power", "write products and sqrt, or have"
            raise self._refuse(
                f"{called}, whose last bits differ between torch and kernels; {instead} `prepare`"
                " compute it of scalars, or a Stage of rows and columns"
            )

    def _state(self, value: ast.expr, over: str = "") -> tuple[str, str]:
        """Add a statement; returns its name, and what that is of."""
        self._check_functions(value)
        written = value
        value = value if over else cast("ast.expr", self.visit(copy.deepcopy(value)))
        kinds = dict(self._names.values())
        if isinstance(value, ast.Name) and not over:
            return value.id, kinds.get(value.id, "")
        names = [node.id for node in ast.walk(value) if isinstance(node, ast.Name)]
        found = {kinds.get(name, "") for name in names}
        if {"row", "column"} <= found:
            raise self._refuse(
                f"mixes rows and columns in `{self._plain(written)}`, which makes a number of each"
                " element: write that in `update` or in a measure, or take a mean of either first"
            )
        of = next((each for each in ("row", "column", "matrix") if each in found), "")
        if over:
            if of != over:
                raise self._refuse(
                    f"gives mean_over_{over}s {_WHAT[of]}, where it must be {_WHAT[over]}"
                )
            of = "matrix"
        name = f"line{len(self._statements)}"
        self._statements.append(Statement(name, of, ast.fix_missing_locations(value), over))
        self._names[f"_ {name}"] = name, of  # no name of a formula has a blank
        return name, of

    @staticmethod
    def _plain(value: ast.expr) -> str:
        text = ast.unparse(value)
        return _MARKS.sub("", _LITERALS.sub(r"\1", text))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        name, _ = self._names.get(node.id, (node.id, ""))
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        over = _MEANS.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if over is None:
            return self.generic_visit(node)
        inner, _ = self._state(node.args[0])
        name, _ = self._state(ast.Name(inner, ast.Load()), over)
        return ast.copy_location(ast.Name(name, ast.Load()), node)

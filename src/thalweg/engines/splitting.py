"""A rule whose variable is kept as a bfloat16 and a correction."""

from __future__ import annotations

import ast
import copy
from dataclasses import replace
from functools import cache
from typing import Any

from thalweg.engines.codecs.split8 import SPLIT8
from thalweg.engines.transcribe import LOCAL_PREFIX, Composed, Transcript, transcribe
from thalweg.errors import RuleError
from thalweg.formula import Rule, Slot, absolute, where

CORRECTION = "correction"

_MANY = 2.0**16 + 1  # a product with it tells 8 of 24 digits apart (Veltkamp 1968)
_LARGE = 2.0**100  # beyond which that product could be infinite


def nearest_bfloat(var: Any) -> Any:
    """The nearest number of 8 digits, by arithmetic alone."""
    many = var * _MANY
    return where(absolute(var) < _LARGE, many - (many - var), var)


class Split(Composed):
    """An update whose variable is the sum of what is stored and a last slot.

    Args:
        formula: The update, `(var, grad, *slots, *, scalars) -> (var, *slots)`.
    """

    def __init__(self, formula: Any) -> None:
        self.formula = formula
        self.__qualname__ = f"{formula.__qualname__} of a split variable"

    def __call__(self, *values: Any, **scalars: Any) -> Any:
        raise RuleError(f"{self.__qualname__} is run by engines alone.")

    def compose(self) -> Transcript:
        """The formula with the correction before and after it."""
        own, nearest = transcribe(self.formula), transcribe(nearest_bfloat)
        locals_ = (name.removeprefix(LOCAL_PREFIX) for name in own.assigned_names)
        taken = {*own.positional, *own.scalars, *locals_}
        prefix = "_split_"
        while any(name.startswith(prefix) for name in taken):
            prefix = f"_{prefix}"
        var, correction, whole = own.positional[0], f"{prefix}correction", f"{prefix}whole"
        inner = _renamed(nearest, {name: f"{prefix}{name}" for name in ("var", "many")})
        body = [
            _assign(var, ast.BinOp(_name(var), ast.Add(), _name(correction))),
            *own.body,
            _assign(whole, own.results[0]),
            _assign(f"{prefix}var", _name(whole)),
            *inner.body,
            _assign(f"{prefix}near", inner.results[0]),
        ]
        near = _name(f"{prefix}near")
        left = ast.BinOp(_name(whole), ast.Sub(), _name(f"{prefix}near"))
        return Transcript(
            positional=(*own.positional, correction),
            scalars=own.scalars,
            body=tuple(ast.fix_missing_locations(each) for each in body),
            results=(near, *own.results[1:], ast.fix_missing_locations(left)),
            helpers=own.helpers,
            filename=own.filename,
        )


def _name(name: str) -> ast.Name:
    return ast.fix_missing_locations(ast.Name(LOCAL_PREFIX + name, ast.Load()))


def _assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(LOCAL_PREFIX + name, ast.Store())], value)


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = {LOCAL_PREFIX + old: LOCAL_PREFIX + new for old, new in names.items()}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


def _renamed(formula: Transcript, names: dict[str, str]) -> Transcript:
    change = _Renaming(names)
    body = [change.visit(copy.deepcopy(each)) for each in formula.body]
    results = [change.visit(copy.deepcopy(each)) for each in formula.results]
    return replace(formula, body=tuple(body), results=tuple(results))


@cache
def split_rule(rule: Rule) -> Rule:
    """The rule of variables of bfloat16 that have a correction as a last slot.

    Raises:
        RuleError: It works on whole matrices, or on a variable that something is done to before.
    """
    if rule.passes or rule.before:
        what = "works on whole matrices" if rule.passes else "changes variables before its update"
        raise RuleError(f"weights='split': rule {rule.name!r} {what}, and sees no correction then.")
    return replace(
        rule,
        name=f"{rule.name} of split weights",
        update=Split(rule.update),
        update_sparse=None,
        update_single=None,
        update_untouched=None,
        whole=True,
        slots=(*rule.slots, Slot(CORRECTION, exact=True, storage=SPLIT8.name)),
    )

"""A rule whose variable is the upper part of what it updates; a last slot has the rest."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache
from typing import Any

from thalweg._engines.codecs.split8 import CORRECTION, SPLIT8
from thalweg._engines.formula_parser import LOCAL_PREFIX, Composed, Transcript, transcribe
from thalweg.errors import RuleError
from thalweg.formula import Rule, Slot


class Split(Composed):
    """An update of what engines make of the variable and a last slot, and make both of again.

    Args:
        formula: The update, `(var, grad, *slots, *, scalars) -> (var, *slots)`.
    """

    def __init__(self, formula: Any) -> None:
        self.formula = formula
        self.__qualname__ = f"{formula.__qualname__} of a split variable"

    def __call__(self, *values: Any, **scalars: Any) -> Any:
        raise RuleError(f"{self.__qualname__} is run by engines alone.")

    def compose(self) -> Transcript:
        """The formula of the slot's number, which both results are then."""
        own = transcribe(self.formula)
        locals_ = (name.removeprefix(LOCAL_PREFIX) for name in own.assigned_names)
        taken = {*own.positional, *own.scalars, *locals_}
        correction, whole = (_apart_from(taken, name) for name in (CORRECTION, "whole"))
        body = [
            _assign(own.positional[0], _name(correction)),
            *own.body,
            _assign(whole, own.results[0]),
        ]
        return Transcript(
            positional=(*own.positional, correction),
            scalars=own.scalars,
            body=tuple(ast.fix_missing_locations(each) for each in body),
            results=(_name(whole), *own.results[1:], _name(whole)),
            helpers=own.helpers,
            filename=own.filename,
        )


def _apart_from(taken: set[str], name: str) -> str:
    """A name that is not taken."""
    while name in taken:
        name = f"_{name}"
    return name


def _name(name: str) -> ast.Name:
    return ast.fix_missing_locations(ast.Name(LOCAL_PREFIX + name, ast.Load()))


def _assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(LOCAL_PREFIX + name, ast.Store())], value)


@cache
def split_rule(rule: Rule) -> Rule:
    """The rule of variables of bfloat16 that have a correction as a last slot.

    Raises:
        RuleError: It works on whole matrices, or on a variable that something is done to before.
    """
    if rule.passes or rule.before:
        what = "works on whole matrices" if rule.passes else "changes variables before its update"
        raise RuleError(
            f"weights='split' cannot be used with {rule.name!r}, which {what} without the lower"
            " bits of the weights. Use masters=True instead."
        )
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

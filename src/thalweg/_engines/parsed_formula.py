"""Checked source of a formula."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

LITERAL = "_literal"  # the name under which an engine supplies its number type
FUNCTION_PREFIX = "_f_"  # and its functions
HELPER_PREFIX = "helper"  # helper functions come after it, numbered
LOCAL_PREFIX = "r_"  # the names of a formula, apart from those of the kernel around it


@dataclass(frozen=True)
class FormulaSource:
    """Formula that passed the checks, as syntax trees.

    Attributes:
        positional: `var`, `grad` and the slots, as the formula calls them.
        scalars: Its keyword-only parameters.
        body: Its assignments, re-typed and renamed.
        results: The expressions it returns.
        helpers: The helper functions it calls, as definitions, in order of need.
        filename: The file that holds the formula.
    """

    positional: tuple[str, ...]
    scalars: tuple[str, ...]
    body: tuple[ast.Assign, ...]
    results: tuple[ast.expr, ...]
    helpers: tuple[ast.FunctionDef, ...]
    filename: str


def place_of(function: Any, line: int | None = None) -> str:
    """A function's name with its file and line, or the line given."""
    function = getattr(function, "func", function)  # of a `functools.partial`
    name = f"{getattr(function, '__qualname__', type(function).__qualname__)!s}"
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{line or code.co_firstlineno})" if code else name


def count_of(count: int, what: str) -> str:
    """`1 slot`, `2 slots`."""
    return f"{count} {what}{'' if count == 1 else 's'}"

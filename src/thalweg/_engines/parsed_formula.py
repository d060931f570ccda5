"""A formula that was read and checked, as engines take it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from thalweg._base.lazy import lazy

LITERAL = "_literal"  # the name under which an engine supplies its number type
FUNCTION_PREFIX = "_f_"  # and its functions
HELPER_PREFIX = "helper"  # helper functions come after it, numbered
LOCAL_PREFIX = "r_"  # the names of a formula, apart from those of the kernel around it


@dataclass(frozen=True)
class Transcript:
    """A formula that passed the checks.

    Attributes:
        positional: `var`, `grad` and the slots, as the formula calls them.
        scalars: Its keyword-only parameters.
        body: Its assignments, re-typed and renamed.
        results: The expressions it returns.
        helpers: The helper functions it calls, as definitions, in order of need.
        filename: The file that holds the formula.
        move: Where it says `moved(base, step)`, which is written as a sum or difference: the number
            of the assignment; that of all for its first result; None if it does not.
    """

    positional: tuple[str, ...]
    scalars: tuple[str, ...]
    body: tuple[ast.Assign, ...]
    results: tuple[ast.expr, ...]
    helpers: tuple[ast.FunctionDef, ...]
    filename: str
    move: int | None = None

    def passes_through(self, result: int, parameter: int) -> bool:
        """Whether a result is nothing but the parameter at that position, never assigned."""
        name, expression = LOCAL_PREFIX + self.positional[parameter], self.results[result]
        is_name = isinstance(expression, ast.Name) and expression.id == name
        return is_name and name not in self.assigned_names

    @lazy
    def assigned_names(self) -> set[str]:
        """The names that its body gives to something."""
        nodes = (node for statement in self.body for node in ast.walk(statement))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        return {name.id for name in names if isinstance(name.ctx, ast.Store)}

    @lazy
    def streams(self) -> list[int]:
        """The positions of the positional parameters that are read."""
        nodes = (node for tree in (*self.body, *self.results) for node in ast.walk(tree))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        return [k for k, name in enumerate(self.positional) if LOCAL_PREFIX + name in names]

    def is_rounded(self, result: int) -> bool:
        """Whether a result comes out of arithmetic, which has flushed it where denormals are."""
        expression = self.results[result]
        for statement in reversed(self.body):
            (target,) = statement.targets
            if isinstance(expression, ast.Name) and isinstance(target, ast.Name):
                expression = statement.value if target.id == expression.id else expression
        return isinstance(expression, ast.BinOp)


def place_of(function: Any, line: int | None = None) -> str:
    """A function's name with its file and line, or the line given."""
    function = getattr(function, "func", function)  # of a `functools.partial`
    name = f"{getattr(function, '__qualname__', type(function).__qualname__)!s}"
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{line or code.co_firstlineno})" if code else name


def count_of(count: int, what: str) -> str:
    """`1 slot`, `2 slots`."""
    return f"{count} {what}{'' if count == 1 else 's'}"

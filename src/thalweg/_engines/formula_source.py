"""Read the source of a formula as a syntax tree; detect a file edited after the import."""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import marshal
import os
import struct
import textwrap
import types
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from typing import Any, cast

from thalweg._base.showing import show_value
from thalweg.errors import RuleError

LITERAL = "_literal"  # the name under which an engine supplies its number type
FUNCTION_PREFIX = "_f_"  # and its functions
HELPER_PREFIX = "helper"  # helper functions come after it, numbered
LOCAL_PREFIX = "r_"  # the names of a formula, apart from those of the kernel around it

_HEADER = struct.Struct("<4sIII")  # of bytecode on disk: format, flags, time and size of the source
_WORD = (1 << 32) - 1
_FUTURE: int = functools.reduce(
    lambda flags, flag: flags | flag,
    (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names),
)


@dataclass(frozen=True)
class FormulaSource:
    """Formula that passed the checks, as syntax trees.

    Attributes:
        positional: The formula's names of `var`, `grad` and the slots.
        scalars: Names of keyword-only parameters.
        body: The assignments, with literals and names rewritten.
        results: The returned expressions.
        helpers: Definitions of called helper functions, callees first.
        filename: The file that holds the formula.
    """

    positional: tuple[str, ...]
    scalars: tuple[str, ...]
    body: tuple[ast.Assign, ...]
    results: tuple[ast.expr, ...]
    helpers: tuple[ast.FunctionDef, ...]
    filename: str


def place_of(function: Any, line: int | None = None) -> str:
    """Return a function's name with its file and line; by default its first line."""
    function = getattr(function, "func", function)  # of a `functools.partial`
    name = f"{getattr(function, '__qualname__', type(function).__qualname__)!s}"
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{line or code.co_firstlineno})" if code else name


def count_of(count: int, noun: str) -> str:
    """Return a count with its noun: "1 slot", "2 slots"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def parse_definition(function: Any) -> ast.FunctionDef:
    """Return the syntax tree of a function, with the line numbers of its file.

    Raises:
        RuleError: The source cannot be read, has changed since the import, or is not a `def`.
    """
    if not isinstance(function, types.FunctionType):
        raise RuleError(
            f"A formula must be a function written with def, not {show_value(function)}."
        )
    try:
        text = textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(text)
        _check_current(function)
    except (OSError, TypeError, SyntaxError, IndentationError) as error:
        raise RuleError(
            f"Cannot read the source of {place_of(function)}: {error}."
            " Define the formula with def in a file."
        ) from None
    node = tree.body[0] if tree.body else None
    if not isinstance(node, ast.FunctionDef):
        raise RuleError(f"{place_of(function)} must be written with def, not as a lambda.")
    ast.increment_lineno(node, function.__code__.co_firstlineno - 1)
    return node


def _check_current(function: types.FunctionType) -> None:
    """Raise RuleError if the file of a function was edited after the import."""
    loaded = function.__code__
    text = "".join(inspect.findsource(function)[0])
    # The future statements of the module change the code of its functions.
    flags = (loaded.co_flags & _FUTURE) | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    recompiled = compile(text, loaded.co_filename, "exec", flags, dont_inherit=True)
    # The import may have read a .pyc of another release of Python with the same magic number, in
    # which equal source has other instructions.
    if not (
        _contains(recompiled, loaded) or _contains(_read_cached_code(loaded.co_filename), loaded)
    ):
        raise RuleError(
            f"The source of {place_of(function)} changed after it was imported; import it again."
        )


def _contains(module: types.CodeType | None, loaded: types.CodeType) -> bool:
    """Return True if a module's code contains `loaded`, the code of a function."""
    codes = [] if module is None else [module]
    # The list grows by nested functions.
    for code in codes:
        if code.co_name == loaded.co_name and _compute_fingerprint(code) == _compute_fingerprint(
            loaded
        ):
            return True
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return False


def _read_cached_code(path: str) -> types.CodeType | None:
    """Return the code object in the `.pyc` file of a module in `__pycache__`.

    Return None if there is no such file, or if it is not of the present source file `path`.
    """
    try:
        cached = Path(cache_from_source(path)).read_bytes()
        header, status = _HEADER.unpack_from(cached), os.stat(path)
        if header != (MAGIC_NUMBER, 0, int(status.st_mtime) & _WORD, status.st_size & _WORD):
            return None
        return cast("types.CodeType", marshal.loads(cached[_HEADER.size :]))
    except (OSError, ValueError, EOFError, TypeError, struct.error, NotImplementedError):
        return None


def _compute_fingerprint(code: types.CodeType) -> tuple[Any, ...]:
    constants = [repr(const) for const in code.co_consts if isinstance(const, int | float)]
    counts = code.co_posonlyargcount, code.co_argcount, code.co_kwonlyargcount
    return code.co_firstlineno, code.co_code, code.co_names, code.co_varnames, counts, constants

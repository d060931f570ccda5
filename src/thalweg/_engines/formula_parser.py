"""Read a formula's source, check it, and rewrite it so that it runs on any kind of number.

Numeric literals take the type of the arithmetic (a bare `1 - beta1` would be computed in double),
the functions of `thalweg.formula` become those of a namespace, helper functions are included, and
anything else that a formula refers to raises an error that names it.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import marshal
import operator
import os
import struct
import textwrap
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from typing import Any, cast

from thalweg import formula
from thalweg._base.composed_formula import ComposedFormula
from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg._engines.formula_graph import (
    FormulaGraph,
    Node,
    make_const,
    make_node,
    stream_nodes,
)
from thalweg._engines.parsed_formula import FUNCTION_PREFIX as FUNCTION_PREFIX
from thalweg._engines.parsed_formula import HELPER_PREFIX as HELPER_PREFIX
from thalweg._engines.parsed_formula import LITERAL as LITERAL
from thalweg._engines.parsed_formula import LOCAL_PREFIX as LOCAL_PREFIX
from thalweg._engines.parsed_formula import FormulaSource as FormulaSource
from thalweg._engines.parsed_formula import count_of as count_of
from thalweg._engines.parsed_formula import place_of as place_of
from thalweg.errors import RuleError

FUNCTIONS = ("sqrt", "absolute", "sign", "where", "maximum", "minimum", "exp", "log", "power")
_EVERY = (*FUNCTIONS, "wide", "narrow")
_BY_FUNCTION = {id(getattr(formula, name)): name for name in _EVERY}
_ARGUMENTS = {name: getattr(formula, name).__code__.co_argcount for name in _EVERY}
_HOME_OF_MEANS = "thalweg._base.fused_stage"  # by its name: few need it loaded
# What other libraries call them, where the name is another.
_ALIASES = {"abs": "absolute", "fabs": "absolute", "max": "maximum", "min": "minimum",
            "fmax": "maximum", "fmin": "minimum", "pow": "power"}  # fmt: skip
_REDUCTIONS = {"all", "amax", "amin", "any", "average", "cumsum", "dot", "einsum", "fsum", "inner",
               "l2_loss", "logsumexp", "matmul", "max", "mean", "median", "min", "mm", "norm",
               "numel", "prod", "softmax", "std", "sum", "trace", "var", "vdot",
               "vector_norm"}  # fmt: skip
_LOGICAL = (ast.BitAnd, ast.BitOr)
_OPERATORS = (*_LOGICAL, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)

_HEADER = struct.Struct("<4sIII")  # of bytecode on disk: format, flags, time and size of the source
_WORD = (1 << 32) - 1
_FUTURE: int = functools.reduce(
    lambda flags, flag: flags | flag,
    (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names),
)


def _make_move_back(base: Node, step: Node) -> Node:
    return make_node("moved", base, -step)


_OTHERS = ("square", "moved", "mean_over_rows", "mean_over_columns")
# Functions that build nodes of a graph.
_NODE_MAKERS: dict[str, Callable[..., Node]] = {
    **{name: functools.partial(make_node, name) for name in (*_EVERY, *_OTHERS)},
    "moved_back": _make_move_back,
}
_python: Any = operator  # without the types of its functions
# Steps of the variable where a formula computes numbers.
_MOVES: dict[str, Callable[..., Any]] = {"moved": _python.add, "moved_back": _python.sub}


class Composed:
    """Formula of an engine that builds its own graph.

    Attributes:
        is_pass: Whether its results are visible only to later passes.
    """

    is_pass = False

    def compose(self) -> FormulaGraph:
        """Return the graph of the formula."""
        raise NotImplementedError


def _advice_for(node: ast.AST) -> str:
    """Return advice for an error about syntax that a formula cannot contain, or ""."""
    if isinstance(node, ast.IfExp):
        parts = ", ".join(map(ast.unparse, (node.test, node.body, node.orelse)))
        return f"; write `where({parts})`"
    if isinstance(node, ast.If | ast.Match):
        return "; choose with where(condition, a, b)"
    if isinstance(node, ast.BoolOp):
        sign = "&" if isinstance(node.op, ast.And) else "|"
        return f"; combine comparisons with `{sign}` and choose with where(condition, a, b)"
    if isinstance(node, ast.UnaryOp):
        return "; write the opposite comparison"
    if isinstance(node, ast.For | ast.While):
        return "; write its steps one below the other"
    if isinstance(node, ast.Return):
        return "; it returns once, at its end"
    if isinstance(node, ast.AnnAssign):
        return "; assign without a type"
    if isinstance(node, ast.Tuple):
        return "; the return of a formula alone holds several values"
    if isinstance(node, ast.List | ast.Dict):
        return "; return several results as `return var, slot`"
    is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
    return _OF_ONE if isinstance(node, ast.Subscript | ast.Attribute) or is_product else ""


# Advice for sums and shapes, which formulas of single elements lack.
_OF_ONE = (
    "; a formula is for one element: sums over a whole variable are `measures` of the rule"
    " (docs/formulas.md#reductions-and-per-variable-scalars), those of rows and columns are made by"
    " a `Measure` (docs/matrix-rules.md#row-and-column-reductions)"
)
_OF_LINES = "; a FusedStage may call mean_over_rows and mean_over_columns, a Stage all of torch"


def _instead_of(call: ast.Call, of_lines: bool) -> str:
    """Return advice for an error about a call that a formula cannot contain."""
    last = ast.unparse(call.func).rpartition(".")[2]
    name = _ALIASES.get(last, last)
    # `max` of two values is no reduction.
    if last.removeprefix("nan").removeprefix("reduce_") in _REDUCTIONS and (
        name not in FUNCTIONS or len(call.args) < 2
    ):
        return _OF_LINES if of_lines else _OF_ONE
    if call.keywords:
        return "; give the arguments by position"
    if name not in FUNCTIONS:
        return f"; it may call {', '.join(FUNCTIONS)} and plain helper functions, by position"
    return f"; write `{name}(...)`, from thalweg import {name}"


def _parse_definition(function: Any) -> ast.FunctionDef:
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
    flags = (loaded.co_flags & _FUTURE) | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    recompiled = compile(text, loaded.co_filename, "exec", flags, dont_inherit=True)
    if not (_contains(recompiled, loaded) or _contains(_cached_code(loaded.co_filename), loaded)):
        raise RuleError(
            f"The source of {place_of(function)} changed after it was imported; import it again."
        )


def _contains(module: types.CodeType | None, loaded: types.CodeType) -> bool:
    """Return whether the code of a module contains a function."""
    codes = [] if module is None else [module]
    # The list grows by nested functions.
    for code in codes:
        if code.co_name == loaded.co_name and _fingerprint_of(code) == _fingerprint_of(loaded):
            return True
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return False


def _cached_code(path: str) -> types.CodeType | None:
    """Return the cached bytecode of a file if it belongs to the file's present text, else None.

    An import uses this bytecode. Another release of Python with the same format number may have
    written it, with other instructions for the same text.
    """
    try:
        cached = Path(cache_from_source(path)).read_bytes()
        header, seen = _HEADER.unpack_from(cached), os.stat(path)
        if header != (MAGIC_NUMBER, 0, int(seen.st_mtime) & _WORD, seen.st_size & _WORD):
            return None
        return cast("types.CodeType", marshal.loads(cached[_HEADER.size :]))
    except (OSError, ValueError, EOFError, TypeError, struct.error, NotImplementedError):
        return None


def _fingerprint_of(code: types.CodeType) -> tuple[Any, ...]:
    numbers = [repr(const) for const in code.co_consts if isinstance(const, int | float)]
    counts = code.co_posonlyargcount, code.co_argcount, code.co_kwonlyargcount
    return code.co_firstlineno, code.co_code, code.co_names, code.co_varnames, counts, numbers


class _Writer(ast.NodeTransformer):
    def __init__(self, function: types.FunctionType, helpers: _Helpers, of_lines: bool = False):
        self.function, self.of_lines = function, of_lines
        self.helpers = helpers
        self.locals: set[str] = set()
        # Whether a local name is a condition. The first use of a helper's parameter decides.
        self.conditions: dict[str, bool] = {}
        self.moves: list[ast.expr] = []  # calls of `moved`
        closure = inspect.getclosurevars(function)
        self.outer: dict[str, Any] = {**closure.builtins, **closure.globals, **closure.nonlocals}

    def refuse(self, node: ast.AST, why: str) -> RuleError:
        """Return the error about a node, with file and line."""
        return RuleError(f"{place_of(self.function, getattr(node, 'lineno', None))}: {why}")

    def generic_visit(self, node: ast.AST) -> ast.AST:
        what = ast.unparse(node).splitlines()[0]
        raise self.refuse(node, f"a formula cannot contain `{what}`{_advice_for(node)}.")

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.locals or isinstance(node.ctx, ast.Store):
            return ast.copy_location(ast.Name(LOCAL_PREFIX + node.id, node.ctx), node)
        if node.id not in self.outer:
            raise self.refuse(node, f"`{node.id}` is not defined.")
        value = self.outer[node.id]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self.write_literal(node, float(value))
        raise self.refuse(
            node,
            f"a formula cannot use `{node.id}`, a {type(value).__name__};"
            " it may use its parameters, numbers, helper functions and thalweg's functions.",
        )

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        owner = node.value
        if isinstance(owner, ast.Name) and isinstance(self.outer.get(owner.id), types.ModuleType):
            text = ast.unparse(node)
            raise self.refuse(
                node,
                f"a formula cannot contain `{text}`; give the number a name outside the formula,"
                f" `{node.attr} = {text}`.",
            )
        return self.generic_visit(node)

    def write_literal(self, node: ast.expr, value: float) -> ast.expr:
        written: ast.expr = ast.Constant(value)
        if value != value:  # NaN has no literal
            infinity = ast.Constant(float("inf"))
            written = ast.BinOp(infinity, ast.Sub(), infinity)
        call = ast.Call(ast.Name(LITERAL, ast.Load()), [written], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise self.refuse(node, f"a formula cannot contain {node.value!r}.")
        return self.write_literal(node, float(node.value))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if not isinstance(node.op, ast.USub | ast.UAdd):
            return self.generic_visit(node)
        return ast.copy_location(ast.UnaryOp(node.op, self.as_number(node.operand)), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if not isinstance(node.op, _OPERATORS):
            return self.generic_visit(node)
        operand = self.as_condition if isinstance(node.op, _LOGICAL) else self.as_number
        left = operand(node.left)
        if isinstance(node.op, ast.Pow):
            if isinstance(node.right, ast.Constant) and node.right.value == 2:
                return self.write_call(node, "square", [left])
            return self.write_call(node, "power", [left, self.as_number(node.right)])
        return ast.copy_location(ast.BinOp(left, node.op, operand(node.right)), node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) != 1 or isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn):
            raise self.refuse(node, f"write `{ast.unparse(node)}` with single comparisons and `&`.")
        left, right = self.as_number(node.left), self.as_number(node.comparators[0])
        return ast.copy_location(ast.Compare(left, node.ops, [right]), node)

    def write_call(self, node: ast.expr, name: str, args: list[ast.expr]) -> ast.expr:
        made = ast.Call(ast.Name(FUNCTION_PREFIX + name, ast.Load()), args, [])
        return ast.fix_missing_locations(ast.copy_location(made, node))

    def refuse_call(self, node: ast.Call, text: str) -> RuleError:
        instead = _instead_of(node, self.of_lines)
        return self.refuse(node, f"a formula cannot call `{text}`{instead}.")

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise self.refuse_call(node, ast.unparse(node))
        function = self.outer.get(node.func.id)
        if function is formula.moved:
            return self.write_move(node)
        name = _BY_FUNCTION.get(id(function))
        if name is None and function is abs:
            name = "absolute"
        is_function = isinstance(function, types.FunctionType)
        if is_function and function.__globals__["__name__"] == _HOME_OF_MEANS:
            if not self.of_lines:
                raise self.refuse(
                    node,
                    f"`{node.func.id}` is for a FusedStage, and there for the formula itself: its"
                    " helpers and all other formulas are for one element.",
                )
            self.check_count(node, 1)
            return self.write_call(node, function.__name__, [self.as_number(node.args[0])])
        if name is None:
            if not isinstance(function, types.FunctionType):
                raise self.refuse_call(node, node.func.id)
            count = self.helpers.count_results(function)
            if count > 1:
                names = ", ".join("abcdefgh"[:count])
                why = f"`{node.func.id}` returns {count} values: write `{names} = {{}}` before."
                raise self.refuse(node, why.format(ast.unparse(node)))
            return self.write_helper(node, function)
        self.check_count(node, _ARGUMENTS[name])
        if name == "where":
            test, *values = node.args
            kinds = {self.is_condition(value) for value in values}
            accept = self.as_condition if True in kinds else self.as_number
            return self.write_call(node, name, [self.as_condition(test), *map(accept, values)])
        return self.write_call(node, name, [self.as_number(arg) for arg in node.args])

    def write_helper(
        self, node: ast.Call, function: types.FunctionType, result: int = 0
    ) -> ast.expr:
        """Return a call of a helper for the result with an index."""
        name = self.helpers.name_helper(function, result)
        self.check_count(node, function.__code__.co_argcount)
        kinds = self.helpers.parameters[function, result]
        accepted = [
            self.visit(arg)
            if kind is None
            else (self.as_condition if kind else self.as_number)(arg)
            for arg, kind in zip(node.args, kinds, strict=True)
        ]
        return self.write_call(node, name, accepted)

    def write_move(self, node: ast.Call) -> ast.expr:
        """Return a call of `moved`, or of `moved_back` if the step is subtracted."""
        self.check_count(node, 2)
        base, step = node.args
        name = "moved"
        if isinstance(step, ast.UnaryOp) and isinstance(step.op, ast.USub):
            name, step = "moved_back", step.operand
        call = self.write_call(node, name, [self.as_number(base), self.as_number(step)])
        self.moves.append(call)
        return call

    def place_of_move(self, node: ast.FunctionDef, values: Sequence[ast.expr]) -> int | None:
        """Return the index of the value that is a call of `moved`, or None if there is no call."""
        places = [
            index for index, value in enumerate(values) if any(value is move for move in self.moves)
        ]
        if len(self.moves) > 1 or len(places) < len(self.moves):
            why = (
                "a formula says `moved(base, step)` once, of what it returns first or gives a name."
            )
            raise self.refuse(node, why)
        return places[0] if places else None

    def check_moved(
        self, node: ast.FunctionDef, body: Sequence[ast.Assign], first: ast.expr, move: int | None
    ) -> None:
        """Raise RuleError if the first result is not the name that `moved` was assigned to."""
        if move is None or move == len(body):
            return
        moved, *later = (cast("ast.Name", line.targets[0]).id for line in body[move:])
        if not (isinstance(first, ast.Name) and first.id == moved) or moved in later:
            name = moved.removeprefix(LOCAL_PREFIX)
            raise self.refuse(
                node, f"`{name}` is what it has `moved`, and what it returns first is another."
            )

    def check_count(self, node: ast.Call, wanted: int) -> None:
        if len(node.args) != wanted:
            needs = count_of(wanted, "argument")
            raise self.refuse(node, f"`{ast.unparse(node)}` needs {needs}.")

    def is_condition(self, node: ast.expr) -> bool | None:
        """Return whether an expression is a condition; None for a parameter that may be either."""
        if isinstance(node, ast.Compare):
            return True
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, _LOGICAL)
        if isinstance(node, ast.Name) and node.id in self.locals:
            return self.conditions.get(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            function = self.outer.get(node.func.id)
            if _BY_FUNCTION.get(id(function)) == "where" and len(node.args) == 3:
                return self.is_condition(node.args[1])
            if (function, 0) in self.helpers.conditions:
                return self.helpers.conditions[function, 0]
        return False

    def as_number(self, node: ast.expr) -> ast.expr:
        written = self.visit(node)
        if self.settle_kind(node, False):
            return written
        raise self.refuse(
            node, f"`{ast.unparse(node)}` is no number; write where({ast.unparse(node)}, 1, 0)."
        )

    def as_condition(self, node: ast.expr) -> ast.expr:
        written = self.visit(node)
        if self.settle_kind(node, True):
            return written
        raise self.refuse(
            node, f"`{ast.unparse(node)}` is no condition; write `{ast.unparse(node)} != 0`."
        )

    def settle_kind(self, node: ast.expr, condition: bool) -> bool:
        """Return whether an expression has a kind; give this kind to a parameter without one."""
        kind = self.is_condition(node)
        if kind is None and isinstance(node, ast.Name):
            kind = self.conditions[node.id] = condition
        return kind is condition

    def write_several(self, node: ast.Assign, target: ast.Tuple) -> list[ast.Assign]:
        """Return assignments of a helper's results: first to new names, then to the targets."""
        names = [each.id for each in target.elts if isinstance(each, ast.Name)]
        call = node.value
        wanted = [(place, name) for place, name in enumerate(names) if name != "_"]
        is_plain = len(names) == len(target.elts) and len({n for _, n in wanted}) == len(wanted)
        title = (
            call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
        )
        helper: Any = self.outer.get(title)
        is_helper = isinstance(helper, types.FunctionType) and id(helper) not in _BY_FUNCTION
        if not (is_plain and is_helper and isinstance(call, ast.Call)):
            raise self.refuse(node, "assign one name at a time, or what a helper function returns.")
        count = self.helpers.count_results(helper)
        if count != len(names):
            raise self.refuse(
                node, f"`{title}` returns {count_of(count, 'value')}, not {len(names)}."
            )
        made: list[ast.Assign] = []
        for place, name in wanted:
            value = self.write_helper(call, helper, place)
            made.append(self.write_assignment(node, f"_{place}_{name}", value))
            self.settle_result(f"_{place}_{name}", self.helpers.conditions[helper, place])
        for place, each in wanted:
            source = ast.copy_location(ast.Name(f"_{place}_{each}", ast.Load()), node)
            stored = ast.copy_location(ast.Name(each, ast.Store()), node)
            made.append(self.visit(ast.copy_location(ast.Assign([stored], source), node)))
        return made

    def write_assignment(self, node: ast.Assign, name: str, value: ast.expr) -> ast.Assign:
        target = ast.Name(LOCAL_PREFIX + name, ast.Store())
        return ast.fix_missing_locations(ast.copy_location(ast.Assign([target], value), node))

    def settle_result(self, name: str, is_condition: bool | None) -> None:
        """Record a local name, and whether it is a condition."""
        self.locals.add(name)
        self.conditions.pop(name, None)
        if is_condition is not None:
            self.conditions[name] = is_condition

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        if len(node.targets) != 1 or not isinstance(target, ast.Name):
            raise self.refuse(node, "assign one name at a time.")
        is_condition = self.is_condition(node.value)
        value = (self.as_condition if is_condition else self.as_number)(node.value)
        kind = self.is_condition(node.value)
        before = self.conditions.get(target.id)
        if target.id in self.locals and None not in (kind, before) and kind != before:
            raise self.refuse(node, f"`{target.id}` cannot be a number here and a condition there.")
        self.settle_result(target.id, kind)
        return ast.copy_location(ast.Assign([self.visit(target)], value), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if not isinstance(node.target, ast.Name):
            raise self.refuse(node, "assign one name at a time.")
        # Written out, because NumPy's `a += b` would change the caller's array.
        load = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        value = ast.copy_location(ast.BinOp(load, node.op, node.value), node)
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], value), node))

    def write_statement(self, node: ast.FunctionDef) -> tuple[list[ast.Assign], ast.expr]:
        arguments = node.args
        if arguments.vararg or arguments.kwarg or arguments.defaults or any(arguments.kw_defaults):
            raise self.refuse(node, "a formula takes plain parameters without defaults or *args.")
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self.locals = {parameter.arg for parameter in parameters}
        body = list(node.body)
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        if not body or not isinstance(body[-1], ast.Return) or body[-1].value is None:
            raise self.refuse(node, "a formula ends with a return of its results.")
        for statement in body[:-1]:
            if not isinstance(statement, ast.Assign | ast.AugAssign):
                self.generic_visit(statement)
        written: list[ast.Assign] = []
        for statement in body[:-1]:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            if isinstance(target, ast.Tuple):
                written += self.write_several(cast("ast.Assign", statement), target)
            else:
                written.append(self.visit(statement))
        return written, body[-1].value


class _Helpers:
    """Helper functions of one formula, each after the helpers that it calls.

    A helper with several results has one definition for each of them.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[types.FunctionType, int], str] = {}
        self._open: set[types.FunctionType] = set()
        self.definitions: list[ast.FunctionDef] = []
        # Whether results and parameters are conditions; None for either kind.
        self.conditions: dict[tuple[Any, int], bool | None] = {}
        self.parameters: dict[tuple[Any, int], list[bool | None]] = {}

    def count_results(self, function: types.FunctionType) -> int:
        """Return the number of results of a helper."""
        last = _parse_definition(function).body[-1]
        value = last.value if isinstance(last, ast.Return) else None
        return len(value.elts) if isinstance(value, ast.Tuple) else 1

    def name_helper(self, function: types.FunctionType, result: int) -> str:
        """Return the name of a helper's definition for one result; write it at the first call."""
        if function in self._open:
            raise RuleError(f"{place_of(function)} calls itself, which a formula cannot.")
        key = function, result
        if key not in self._names:
            self._names[key] = f"{HELPER_PREFIX}{len(self._names)}_{function.__name__}"
            self._open.add(function)
            self.definitions.append(self._write_definition(function, result))
            self._open.remove(function)
        return self._names[key]

    def _write_definition(self, function: types.FunctionType, index: int) -> ast.FunctionDef:
        node = _parse_definition(function)
        writer = _Writer(function, self)
        assigned, result = writer.write_statement(node)
        result = result.elts[index] if isinstance(result, ast.Tuple) else result
        accept = writer.as_condition if writer.is_condition(result) else writer.as_number
        returned = ast.copy_location(ast.Return(accept(result)), result)
        body: list[ast.stmt] = [*assigned, returned]
        if writer.moves:
            raise writer.refuse(node, "`moved` is for the formula itself, not for its helpers.")
        if node.args.kwonlyargs:
            raise writer.refuse(node, "a helper function takes its parameters by position.")
        key = function, index
        self.conditions[key] = writer.is_condition(result)
        every = [*node.args.posonlyargs, *node.args.args]
        self.parameters[key] = [writer.conditions.get(arg.arg) for arg in every]
        parameters = [ast.arg(LOCAL_PREFIX + arg.arg) for arg in every]
        made = ast.FunctionDef(
            name=FUNCTION_PREFIX + self._names[key],
            args=ast.arguments([], parameters, None, [], [], None, []),
            body=body,
            decorator_list=[],
        )
        return ast.fix_missing_locations(ast.copy_location(made, node))


# By the function, and whether it is the formula of a `FusedStage`.
_sources: weakref.WeakKeyDictionary[Any, dict[bool, FormulaSource]] = weakref.WeakKeyDictionary()


def read_source(function: Any, of_lines: bool = False) -> FormulaSource:
    """Return the checked source of a formula.

    Args:
        function: The formula.
        of_lines: Whether the formula is that of a `FusedStage`.

    Raises:
        RuleError: The formula contains anything but straight arithmetic; names it and its line.
    """
    sources = _sources.get(function, {}) if isinstance(function, types.FunctionType) else {}
    if of_lines not in sources:
        sources[of_lines] = _parse_source(function, of_lines)
        _sources[function] = sources
    return sources[of_lines]


def _parse_source(function: Any, of_lines: bool) -> FormulaSource:
    node = _parse_definition(function)
    helpers = _Helpers()
    writer = _Writer(function, helpers, of_lines)
    parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    writer.conditions = {parameter.arg: False for parameter in parameters}
    body, returned = writer.write_statement(node)
    elements = returned.elts if isinstance(returned, ast.Tuple) else [returned]
    results = tuple(writer.as_number(element) for element in elements)
    move = writer.place_of_move(node, [*(each.value for each in body), *results[:1]])
    writer.check_moved(node, body, results[0], move)
    return FormulaSource(
        positional=tuple(arg.arg for arg in [*node.args.posonlyargs, *node.args.args]),
        scalars=tuple(arg.arg for arg in node.args.kwonlyargs),
        body=tuple(body),
        results=results,
        helpers=tuple(helpers.definitions),
        filename=function.__code__.co_filename,
    )


_graphs: weakref.WeakKeyDictionary[Any, FormulaGraph] = weakref.WeakKeyDictionary()


def transcribe(function: Any) -> FormulaGraph:
    """Return the graph of a formula.

    Raises:
        RuleError: The formula contains anything but straight arithmetic; names it and its line.
    """
    is_formula = isinstance(function, types.FunctionType | ComposedFormula | Composed)
    graph = _graphs.get(function) if is_formula else None
    if graph is None:
        if isinstance(function, ComposedFormula):
            with importing:
                from thalweg._engines.formula_composition import compose
            graph = compose(function, *map(transcribe, function.both))
        elif isinstance(function, Composed):
            graph = function.compose()
        else:
            graph = trace(function)
        _graphs[function] = graph
    return graph


def trace(function: Any, of_lines: bool = False) -> FormulaGraph:
    """Return the graph of a formula; `of_lines` as for `read_source`."""
    source = read_source(function, of_lines)
    values = stream_nodes(len(source.positional))
    scalars = {name: make_node("scalar", name) for name in source.scalars}
    steps = bind_formula(function, _NODE_MAKERS, make_const, of_lines)(*values, **scalars)
    return FormulaGraph(source.positional, source.scalars, steps)


def bind_formula(
    formula: Any, namespace: Mapping[str, Any], literal: Any, of_lines: bool = False
) -> Any:
    """Return a formula as a function over an engine's functions and number type.

    A function keeps its file and line numbers, so that a debugger steps through its source.

    Args:
        formula: The formula.
        namespace: The engine's functions by name.
        literal: Makes a number of the type.
        of_lines: Whether the formula is that of a `FusedStage`.
    """
    if isinstance(formula, ComposedFormula | Composed):
        with importing:
            from thalweg._engines.formula_composition import bind_graph
        return bind_graph(transcribe(formula), namespace, literal)
    source = read_source(formula, of_lines)
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


def check_counts(function: Any, formula_graph: FormulaGraph, grad: bool, slots: int) -> None:
    """Raise unless a formula takes and returns as many values as its rule has.

    Args:
        function: The formula, `(var, *slots)`, or `(var, grad, *slots)` if `grad`.
        formula_graph: Its graph.
        grad: Whether it takes a gradient.
        slots: How many slots the rule has.

    Raises:
        RuleError: Names the formula, its place and both numbers.
    """
    wanted = 1 + grad + slots
    if (len(formula_graph.positional), len(formula_graph.steps)) == (wanted, 1 + slots):
        return
    raise RuleError(
        f"{place_of(function)} takes {count_of(len(formula_graph.positional), 'value')} and returns"
        f" {len(formula_graph.steps)}; with {count_of(slots, 'slot')} it must take {wanted}"
        f" ({'var, grad, *slots' if grad else 'var, *slots'}) and return {1 + slots}"
        " (var, *slots)."
    )

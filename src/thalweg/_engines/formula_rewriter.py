"""Check the syntax tree of a formula and rewrite it for any kind of number.

Numeric literals become calls of the engine's number type. Functions of `thalweg.formula` get a
prefix. Helper functions are included. Other syntax raises RuleError with the formula's line.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Sequence
from typing import Any

from thalweg import formula
from thalweg._engines.formula_source import (
    FUNCTION_PREFIX,
    HELPER_PREFIX,
    LITERAL,
    LOCAL_PREFIX,
    count_of,
    parse_definition,
    place_of,
)
from thalweg.errors import RuleError

FUNCTIONS = ("sqrt", "absolute", "sign", "where", "maximum", "minimum", "exp", "log", "power")
ALL_FUNCTIONS = (*FUNCTIONS, "wide", "narrow")
# By id, because global objects of a formula need not be hashable.
_BY_FUNCTION = {id(getattr(formula, name)): name for name in ALL_FUNCTIONS}
_ARGUMENTS = {name: getattr(formula, name).__code__.co_argcount for name in ALL_FUNCTIONS}
_MEANS_MODULE = "thalweg._base.fused_stage"  # a name, because few formulas need it
# Names of these functions in other libraries.
_ALIASES = {"abs": "absolute", "fabs": "absolute", "max": "maximum", "min": "minimum",
            "fmax": "maximum", "fmin": "minimum", "pow": "power"}  # fmt: skip
_REDUCTIONS = {"all", "amax", "amin", "any", "average", "cumsum", "dot", "einsum", "fsum", "inner",
               "l2_loss", "logsumexp", "matmul", "max", "mean", "median", "min", "mm", "norm",
               "numel", "prod", "softmax", "std", "sum", "trace", "var", "vdot",
               "vector_norm"}  # fmt: skip
_LOGICAL = (ast.BitAnd, ast.BitOr)
_OPERATORS = (*_LOGICAL, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)


# Advice for sums and shapes, which formulas of single elements lack.
_ONE_ELEMENT_ADVICE = (
    "; a formula is for one element: sums over a whole variable are `measures` of the rule"
    " (docs/formulas.md#reductions-and-per-variable-scalars), those of rows and columns are made by"
    " a `Measure` (docs/matrix-rules.md#row-and-column-reductions)"
)
_STAGE_ADVICE = "; a FusedStage may call mean_over_rows and mean_over_columns, a Stage all of torch"
_ADVICE: dict[type[ast.AST], str] = {
    **dict.fromkeys((ast.If, ast.Match), "; choose with where(condition, a, b)"),
    ast.UnaryOp: "; write the opposite comparison",
    **dict.fromkeys((ast.For, ast.While), "; write its steps one below the other"),
    ast.Return: "; it returns once, at its end",
    ast.AnnAssign: "; assign without a type",
    ast.Tuple: "; the return of a formula alone holds several values",
    **dict.fromkeys((ast.List, ast.Dict), "; return several results as `return var, slot`"),
    **dict.fromkeys((ast.Subscript, ast.Attribute), _ONE_ELEMENT_ADVICE),
}


# A helper, and the indices of its results that are assigned to `_`.
_HelperKey = tuple[types.FunctionType, frozenset[int]]
_NO_INDICES = frozenset[int]()


def _advice_for(syntax: ast.AST) -> str:
    """Return the end of an error message: advice about unsupported syntax, or ""."""
    if isinstance(syntax, ast.IfExp):
        arguments = ", ".join(map(ast.unparse, (syntax.test, syntax.body, syntax.orelse)))
        return f"; write `where({arguments})`"
    if isinstance(syntax, ast.BoolOp):
        sign = "&" if isinstance(syntax.op, ast.And) else "|"
        return f"; combine comparisons with `{sign}` and choose with where(condition, a, b)"
    if isinstance(syntax, ast.BinOp) and isinstance(syntax.op, ast.MatMult):
        return _ONE_ELEMENT_ADVICE
    return _ADVICE.get(type(syntax), "")


def _advice_for_call(call: ast.Call, is_stage: bool) -> str:
    """Return the end of an error message: advice about an unsupported call."""
    last = ast.unparse(call.func).rpartition(".")[2]
    name = _ALIASES.get(last, last)
    # `max` of two values is no reduction.
    if last.removeprefix("nan").removeprefix("reduce_") in _REDUCTIONS and (
        name not in FUNCTIONS or len(call.args) < 2
    ):
        return _STAGE_ADVICE if is_stage else _ONE_ELEMENT_ADVICE
    if call.keywords:
        return "; give the arguments by position"
    if name not in FUNCTIONS:
        return f"; it may call {', '.join(FUNCTIONS)} and plain helper functions, by position"
    return f"; write `{name}(...)`, from thalweg import {name}"


class FormulaRewriter(ast.NodeTransformer):
    """Rewriter of one formula or helper function; raises RuleError for unsupported syntax."""

    def __init__(
        self, function: types.FunctionType, helpers: HelperFunctions, is_stage: bool = False
    ):
        self.function, self.is_stage = function, is_stage
        self.helpers = helpers
        self.locals: set[str] = set()
        # True for a local name that is a condition. The first use of a helper's parameter decides.
        self.conditions: dict[str, bool] = {}
        self.moves: list[ast.expr] = []  # calls of `moved`
        closure = inspect.getclosurevars(function)
        self.outer: dict[str, Any] = {**closure.builtins, **closure.globals, **closure.nonlocals}

    def error_at(self, syntax: ast.AST, problem: str) -> RuleError:
        """Return the error about a syntax node, with the file and the line of the node."""
        return RuleError(f"{place_of(self.function, getattr(syntax, 'lineno', None))}: {problem}")

    def generic_visit(self, node: ast.AST) -> ast.AST:
        first_line = ast.unparse(node).splitlines()[0]
        raise self.error_at(node, f"a formula cannot contain `{first_line}`{_advice_for(node)}.")

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Prefix a local name, or replace a global number by a literal; else raise RuleError."""
        if node.id in self.locals or isinstance(node.ctx, ast.Store):
            return ast.copy_location(ast.Name(LOCAL_PREFIX + node.id, node.ctx), node)
        if node.id not in self.outer:
            raise self.error_at(node, f"`{node.id}` is not defined.")
        value = self.outer[node.id]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self.write_literal(node, float(value))
        raise self.error_at(
            node,
            f"a formula cannot use `{node.id}`, a {type(value).__name__};"
            " it may use its parameters, numbers, helper functions and thalweg's functions.",
        )

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Raise RuleError; the message has advice if the attribute is of a module."""
        owner = node.value
        if isinstance(owner, ast.Name) and isinstance(self.outer.get(owner.id), types.ModuleType):
            text = ast.unparse(node)
            raise self.error_at(
                node,
                f"a formula cannot contain `{text}`; give the number a name outside the formula,"
                f" `{node.attr} = {text}`.",
            )
        return self.generic_visit(node)

    def write_literal(self, expression: ast.expr, value: float) -> ast.expr:
        literal: ast.expr = ast.Constant(value)
        # NaN has no literal.
        if value != value:
            infinity = ast.Constant(float("inf"))
            literal = ast.BinOp(infinity, ast.Sub(), infinity)
        call = ast.Call(ast.Name(LITERAL, ast.Load()), [literal], [])
        return ast.fix_missing_locations(ast.copy_location(call, expression))

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise self.error_at(node, f"a formula cannot contain {node.value!r}.")
        return self.write_literal(node, float(node.value))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if not isinstance(node.op, ast.USub | ast.UAdd):
            return self.generic_visit(node)
        return ast.copy_location(ast.UnaryOp(node.op, self.as_number(node.operand)), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Rewrite arithmetic, or `&` and `|` of conditions; else raise RuleError."""
        if not isinstance(node.op, _OPERATORS):
            return self.generic_visit(node)
        is_logical = isinstance(node.op, _LOGICAL)
        lhs = self.as_kind(node.left, is_logical)
        if isinstance(node.op, ast.Pow):
            if isinstance(node.right, ast.Constant) and node.right.value == 2:
                return self.write_call(node, "square", [lhs])
            return self.write_call(node, "power", [lhs, self.as_number(node.right)])
        rhs = self.as_kind(node.right, is_logical)
        return ast.copy_location(ast.BinOp(lhs, node.op, rhs), node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) != 1 or isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn):
            raise self.error_at(
                node, f"write `{ast.unparse(node)}` with single comparisons and `&`."
            )
        lhs, rhs = self.as_number(node.left), self.as_number(node.comparators[0])
        return ast.copy_location(ast.Compare(lhs, node.ops, [rhs]), node)

    def write_call(self, expression: ast.expr, name: str, args: list[ast.expr]) -> ast.expr:
        call = ast.Call(ast.Name(FUNCTION_PREFIX + name, ast.Load()), args, [])
        return ast.fix_missing_locations(ast.copy_location(call, expression))

    def call_error(self, call: ast.Call, text: str) -> RuleError:
        advice = _advice_for_call(call, self.is_stage)
        return self.error_at(call, f"a formula cannot call `{text}`{advice}.")

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Rewrite a call of a formula function, helper or `moved`; else raise RuleError."""
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise self.call_error(node, ast.unparse(node))
        function = self.outer.get(node.func.id)
        if function is formula.moved:
            return self.write_move(node)
        name = _BY_FUNCTION.get(id(function))
        if name is None and function is abs:
            name = "absolute"
        is_function = isinstance(function, types.FunctionType)
        if is_function and function.__globals__["__name__"] == _MEANS_MODULE:
            if not self.is_stage:
                raise self.error_at(
                    node,
                    f"`{node.func.id}` is for a FusedStage, and there for the formula itself: its"
                    " helpers and all other formulas are for one element.",
                )
            self.check_count(node, 1)
            return self.write_call(node, function.__name__, [self.as_number(node.args[0])])
        if name is None:
            if not isinstance(function, types.FunctionType):
                raise self.call_error(node, node.func.id)
            call = self.write_helper(node, function)
            count = len(self.helpers.conditions[function, _NO_INDICES])
            if count > 1:
                names = ", ".join("abcdefgh"[:count])
                problem = f"`{node.func.id}` returns {count} values: write `{names} = {{}}` before."
                raise self.error_at(node, problem.format(ast.unparse(node)))
            return call
        self.check_count(node, _ARGUMENTS[name])
        if name == "where":
            test, *values = node.args
            is_choice = True in {self.is_condition(value) for value in values}
            args = [self.as_kind(test, True), *(self.as_kind(x, is_choice) for x in values)]
            return self.write_call(node, name, args)
        return self.write_call(node, name, [self.as_number(arg) for arg in node.args])

    def write_helper(
        self,
        node: ast.Call,
        helper: types.FunctionType,
        dropped_indices: frozenset[int] = _NO_INDICES,
    ) -> ast.expr:
        """Return a call of the generated function that computes the results of a helper.

        Results with an index in `dropped_indices` are not computed.
        """
        name = self.helpers.name_helper(helper, dropped_indices)
        self.check_count(node, helper.__code__.co_argcount)
        kinds = self.helpers.parameters[helper, dropped_indices]
        accepted = [
            self.visit(arg) if kind is None else self.as_kind(arg, kind)
            for arg, kind in zip(node.args, kinds, strict=True)
        ]
        return self.write_call(node, name, accepted)

    def write_move(self, node: ast.Call) -> ast.expr:
        """Return a call of `moved(base, step)`, and append it to `self.moves`.

        A step with a minus sign becomes a call of `moved_back`, without the sign.
        """
        self.check_count(node, 2)
        base, step = node.args
        name = "moved"
        if isinstance(step, ast.UnaryOp) and isinstance(step.op, ast.USub):
            name, step = "moved_back", step.operand
        call = self.write_call(node, name, [self.as_number(base), self.as_number(step)])
        self.moves.append(call)
        return call

    def check_move(
        self, definition: ast.FunctionDef, body: Sequence[ast.Assign], first: ast.expr
    ) -> None:
        """Raise RuleError unless `moved` is called at most once, for the first result.

        `first` is that result: the call itself, or the name that `body` assigns from the call.
        """
        values = [*(line.value for line in body), first]
        indices = [k for k, value in enumerate(values) if any(value is x for x in self.moves)]
        if len(self.moves) > 1 or len(indices) < len(self.moves):
            raise self.error_at(
                definition,
                "call `moved(base, step)` once, as the first result or assigned to a name.",
            )
        if not indices or indices[0] == len(body):
            return
        targets = [target for line in body[indices[0] :] for target in line.targets]
        names = [x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)]
        moved_name, *later_names = names
        is_first = isinstance(first, ast.Name) and first.id == moved_name
        if not is_first or moved_name in later_names:
            name = moved_name.removeprefix(LOCAL_PREFIX)
            raise self.error_at(
                definition, f"`{name}` is assigned from `moved`, so it must be the first result."
            )

    def check_count(self, call: ast.Call, count: int) -> None:
        """Raise RuleError unless a call has this number of arguments."""
        if len(call.args) != count:
            problem = f"`{ast.unparse(call)}` needs {count_of(count, 'argument')}."
            raise self.error_at(call, problem)

    def is_condition(self, expression: ast.expr) -> bool | None:
        """Return True for a condition, False for a number, None for a parameter of unknown kind."""
        if isinstance(expression, ast.Compare):
            return True
        if isinstance(expression, ast.BinOp):
            return isinstance(expression.op, _LOGICAL)
        if isinstance(expression, ast.Name) and expression.id in self.locals:
            return self.conditions.get(expression.id)
        if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name):
            function = self.outer.get(expression.func.id)
            if _BY_FUNCTION.get(id(function)) == "where" and len(expression.args) == 3:
                return self.is_condition(expression.args[1])
            if isinstance(function, types.FunctionType):
                return self.helpers.conditions.get((function, _NO_INDICES), [False])[0]
        return False

    def as_kind(self, expression: ast.expr, is_condition: bool) -> ast.expr:
        """Rewrite an expression that must be a condition, or a number if `is_condition` is False.

        A parameter of unknown kind is recorded with this kind. An expression of the other kind
        raises RuleError.
        """
        rewritten = self.visit(expression)
        kind = self.is_condition(expression)
        if kind is None and isinstance(expression, ast.Name):
            kind = self.conditions[expression.id] = is_condition
        if kind is is_condition:
            return rewritten
        text = ast.unparse(expression)
        advice = (
            f"not a condition; write `{text} != 0`"
            if is_condition
            else f"not a number; write where({text}, 1, 0)"
        )
        raise self.error_at(expression, f"`{text}` is {advice}.")

    def as_number(self, expression: ast.expr) -> ast.expr:
        return self.as_kind(expression, False)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Rewrite an assignment; record whether each name is a number or a condition."""
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Tuple):
            return self.write_tuple_assignment(node, target)
        if len(node.targets) != 1 or not isinstance(target, ast.Name):
            raise self.error_at(node, "assign one name at a time.")
        value = self.as_kind(node.value, bool(self.is_condition(node.value)))
        self.record_local(node, target.id, self.is_condition(node.value))
        return ast.copy_location(ast.Assign([self.visit(target)], value), node)

    def write_tuple_assignment(self, assignment: ast.Assign, target: ast.Tuple) -> ast.AST:
        """Rewrite `a, b = helper(...)`; results assigned to `_` are not computed."""
        names = [element.id for element in target.elts if isinstance(element, ast.Name)]
        used, call = [name for name in names if name != "_"], assignment.value
        helper_name = (
            call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
        )
        helper: Any = self.outer.get(helper_name)
        is_helper = isinstance(helper, types.FunctionType) and id(helper) not in _BY_FUNCTION
        if (
            not (is_helper and isinstance(call, ast.Call))
            or len({*used}) < len(used)
            or len(names) < len(target.elts)
        ):
            raise self.error_at(
                assignment, "assign one name at a time, or what a helper function returns."
            )
        dropped_indices = frozenset(index for index, name in enumerate(names) if name == "_")
        value = self.write_helper(call, helper, dropped_indices)
        conditions = self.helpers.conditions[helper, dropped_indices]
        count = len(conditions)
        if count != len(names):
            raise self.error_at(
                assignment, f"`{helper_name}` returns {count_of(count, 'value')}, not {len(names)}."
            )
        for name, is_condition in zip(names, conditions, strict=True):
            if name != "_":
                self.record_local(assignment, name, is_condition)
        stores = [
            self.visit(x) for index, x in enumerate(target.elts) if index not in dropped_indices
        ]
        store = stores[0] if len(stores) == 1 else ast.Tuple(stores, ast.Store())
        store = ast.copy_location(store, target)
        return ast.copy_location(ast.Assign([store], value), assignment)

    def record_local(self, assignment: ast.Assign, name: str, is_condition: bool | None) -> None:
        """Record the kind of an assigned name; raise RuleError if the name has the other kind."""
        former_kind = self.conditions.pop(name, None)
        if name in self.locals and {is_condition, former_kind} == {True, False}:
            raise self.error_at(
                assignment, f"`{name}` cannot be a number here and a condition there."
            )
        self.locals.add(name)
        if is_condition is not None:
            self.conditions[name] = is_condition

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if not isinstance(node.target, ast.Name):
            raise self.error_at(node, "assign one name at a time.")
        # Written out, because NumPy's `a += b` would change the caller's array.
        load = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        value = ast.copy_location(ast.BinOp(load, node.op, node.value), node)
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], value), node))

    def write_body(self, definition: ast.FunctionDef) -> tuple[list[ast.Assign], ast.expr]:
        """Return the rewritten assignments of a function, and its returned expression unchanged."""
        arguments = definition.args
        if arguments.vararg or arguments.kwarg or arguments.defaults or any(arguments.kw_defaults):
            raise self.error_at(
                definition, "a formula takes plain parameters without defaults or *args."
            )
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self.locals = {parameter.arg for parameter in parameters}
        body = list(definition.body)
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        if not body or not isinstance(body[-1], ast.Return) or body[-1].value is None:
            raise self.error_at(definition, "a formula ends with a return of its results.")
        for statement in body[:-1]:
            if not isinstance(statement, ast.Assign | ast.AugAssign):
                self.generic_visit(statement)
        return [self.visit(statement) for statement in body[:-1]], body[-1].value


class HelperFunctions:
    """Definitions of a formula's helper functions, callees first.

    Attributes:
        definitions: The definitions; a helper with several results returns a tuple. A helper has a
            definition for each set of dropped results, because these set no conditions.
        conditions, parameters: For each helper and set of dropped results, and each of its results,
            or parameters, True for a condition, False for a number, None for either.
    """

    def __init__(self) -> None:
        self._names: dict[_HelperKey, str] = {}
        self._open: set[types.FunctionType] = set()
        self.definitions: list[ast.FunctionDef] = []
        self.conditions: dict[_HelperKey, list[bool | None]] = {}
        self.parameters: dict[_HelperKey, list[bool | None]] = {}

    def name_helper(self, helper: types.FunctionType, dropped_indices: frozenset[int]) -> str:
        """Return the name of a helper's definition, without `FUNCTION_PREFIX`.

        The first call for a helper and dropped results appends the definition to `definitions`.

        Raises:
            RuleError: The helper calls itself, or cannot be rewritten.
        """
        if helper in self._open:
            raise RuleError(f"{place_of(helper)} calls itself, which a formula cannot.")
        key = helper, dropped_indices
        if key not in self._names:
            self._names[key] = f"{HELPER_PREFIX}{len(self._names)}_{helper.__name__}"
            self._open.add(helper)
            self.definitions.append(self._write_definition(helper, dropped_indices))
            self._open.remove(helper)
        return self._names[key]

    def _write_definition(
        self, helper: types.FunctionType, dropped_indices: frozenset[int]
    ) -> ast.FunctionDef:
        """Return the definition of a helper; set its entries of `conditions` and `parameters`."""
        node = parse_definition(helper)
        writer = FormulaRewriter(helper, self)
        assignments, returned = writer.write_body(node)
        results = returned.elts if isinstance(returned, ast.Tuple) else [returned]
        used_results = [x for index, x in enumerate(results) if index not in dropped_indices]
        values = [writer.as_kind(x, bool(writer.is_condition(x))) for x in used_results]
        value = values[0] if len(values) == 1 else ast.Tuple(values, ast.Load())
        statement = ast.copy_location(ast.Return(ast.copy_location(value, returned)), returned)
        if writer.moves:
            raise writer.error_at(node, "`moved` is for the formula itself, not for its helpers.")
        if node.args.kwonlyargs:
            raise writer.error_at(node, "a helper function takes its parameters by position.")
        key = helper, dropped_indices
        self.conditions[key] = list(map(writer.is_condition, results))
        arguments = [*node.args.posonlyargs, *node.args.args]
        self.parameters[key] = [writer.conditions.get(arg.arg) for arg in arguments]
        definition = ast.FunctionDef(
            name=FUNCTION_PREFIX + self._names[key],
            args=ast.arguments(
                [], [ast.arg(LOCAL_PREFIX + arg.arg) for arg in arguments], None, [], [], None, []
            ),
            body=[*assignments, statement],
            decorator_list=[],
        )
        return ast.fix_missing_locations(ast.copy_location(definition, node))

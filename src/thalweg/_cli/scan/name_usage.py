"""Names of TensorFlow that a script uses, found in its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Path = tuple[str, ...]
"""A dotted name below `tensorflow`: `tf.nn.relu` is ("nn", "relu")."""

ROOTS: tuple[Path, ...] = (("tensorflow",), ("thalweg", "tf"))
_IMPORT_FAILS = {"ImportError", "ModuleNotFoundError"}
_ALL_FAILS = {"Exception", "BaseException", ""}

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class CallArguments(NamedTuple):
    """Arguments of a call: the number of positional ones before any `*`, and the keywords."""

    positional: int
    keywords: tuple[str, ...]


class Use(NamedTuple):
    """Use of a TensorFlow name in a script.

    Attributes:
        path: The full dotted name.
        line: The line of the name.
        call: The arguments, if the name is called.
        module: The module, if the name is in an import statement.
        caught: Whether the script catches the error for a missing name.
    """

    path: Path
    line: int
    call: CallArguments | None = None
    module: Path | None = None
    caught: bool = False


def uses(tree: ast.Module) -> list[Use]:
    """Return the TensorFlow names that a module uses, sorted by line.

    Imports and aliases such as `layers = tf.layers` are followed in Python's scopes. Results of
    calls, names from `import *`, and names that two branches bind differently are not followed.
    """
    finder = _UsageFinder()
    finder.module(tree)
    return sorted(set(finder.uses), key=lambda use: (use.line, use.path))


class _Scope:
    """Scope of a module, class, function or comprehension: {name: TensorFlow path}.

    Args:
        parent: The enclosing scope, in which unbound names are looked up.
        local_names: Names that are bound in this scope, and hide names of the parent.
    """

    def __init__(self, parent: _Scope | None = None, local_names: Iterable[str] = ()) -> None:
        self.parent = parent
        self.local_names = frozenset(local_names)
        self.names: dict[str, Path | None] = {}
        # Scopes of names declared `global` or `nonlocal`.
        self.elsewhere: dict[str, _Scope] = {}

    def lookup(self, name: str) -> Path | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            if name in scope.local_names:
                return None
            scope = scope.parent
        return None

    def bind(self, name: str, path: Path | None) -> None:
        self.elsewhere.get(name, self).names[name] = path

    @property
    def top(self) -> _Scope:
        return self if self.parent is None else self.parent.top


class _UsageFinder(ast.NodeVisitor):
    """Visitor that appends the TensorFlow names of a module to `uses`."""

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self._scope = _Scope()
        # The scope that nested functions see, which excludes class scopes.
        self._enclosing: _Scope = self._scope
        self._pending: list[tuple[_Function, _Scope]] = []
        self._handled_exceptions: list[set[str]] = []

    def module(self, tree: ast.Module) -> None:
        """Visit statements, then bodies of functions, because these run after all are bound."""
        self._all(tree.body)
        while self._pending:
            function, enclosing = self._pending.pop(0)
            self._body(function, enclosing)

    def _all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    # Names

    def _path(self, node: ast.AST) -> Path | None:
        if isinstance(node, ast.Name):
            return self._scope.lookup(node.id)
        if isinstance(node, ast.Attribute):
            base = self._path(node.value)
            return None if base is None else (*base, node.attr)
        return None

    def _use(self, path: Path, line: int, call: CallArguments | None = None) -> None:
        if path:
            is_handled = any("AttributeError" in names for names in self._handled_exceptions)
            self.uses.append(Use(path, line, call, None, is_handled))

    def visit_Name(self, node: ast.Name) -> None:
        path = self._path(node)
        if path is not None and isinstance(node.ctx, ast.Load):
            self._use(path, node.lineno)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path is None:
            self.visit(node.value)
        else:
            # An attribute that is assigned to need not exist.
            self._use(path if isinstance(node.ctx, ast.Load) else path[:-1], node.lineno)

    def visit_Call(self, node: ast.Call) -> None:
        path = self._path(node.func)
        if path is None:
            self.visit(node.func)
        else:
            starred = [isinstance(argument, ast.Starred) for argument in node.args]
            count = starred.index(True) if True in starred else len(starred)
            names = tuple(keyword.arg for keyword in node.keywords if keyword.arg is not None)
            self._use(path, node.lineno, CallArguments(count, names))
        self._all(node.args)
        self._all(keyword.value for keyword in node.keywords)

    # Statements that bind names

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            path = _below(alias.name)
            if path is None:
                self._bind(alias.asname or alias.name.partition(".")[0], None)
                continue
            self._import(path, path, node.lineno)
            if alias.asname is not None:
                self._bind(alias.asname, path)
            elif alias.name.startswith("tensorflow"):  # `thalweg.tf` binds `thalweg`
                self._bind("tensorflow", ())

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = None if node.level else _below(node.module or "")
        for alias in node.names:
            target = _below(f"{node.module}.{alias.name}") if not node.level else None
            if target == ():  # from thalweg import tf
                self._bind(alias.asname or alias.name, target)
            elif module is None:
                self._bind(alias.asname or alias.name, None)
            elif alias.name == "*":
                self._import(module, module, node.lineno)
            else:
                path = (*module, alias.name)
                self._import(path, module, node.lineno)
                self._bind(alias.asname or alias.name, path)

    def _import(self, path: Path, module: Path, line: int) -> None:
        if path:
            is_handled = any(
                names & (_IMPORT_FAILS | _ALL_FAILS) for names in self._handled_exceptions
            )
            self.uses.append(Use(path, line, None, module, is_handled))

    def _bind(self, target: ast.AST | str, path: Path | None) -> None:
        if isinstance(target, str):
            self._scope.bind(target, path)
        elif isinstance(target, ast.Name):
            self._scope.bind(target.id, path)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, None)
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._bind(element, None)
        else:
            self.visit(target)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._assign(target, node.value)

    def _assign(self, target: ast.AST, value: ast.AST) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            self._assign_each(target.elts, value.elts)
            return
        if isinstance(value, ast.Constant) and value.value is None and isinstance(target, ast.Name):
            # `tf = None` if TensorFlow could not be imported.
            return
        self._bind(target, self._path(value))

    def _assign_each(self, targets: list[ast.expr], values: list[ast.expr]) -> None:
        if len(targets) == len(values):
            for target, value in zip(targets, values, strict=True):
                self._assign(target, value)
            return
        # The numbers differ because one target has a star.
        for target in targets:
            self._bind(target, None)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
            self._assign(node.target, node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        self._bind(node.target, None)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._bind(node.target, self._path(node.value))

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._bind(target, None)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, None)
        self._all(node.body)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._bind(node.target, None)
        self._all([*node.body, *node.orelse])

    visit_AsyncWith, visit_AsyncFor = visit_With, visit_For

    def visit_Global(self, node: ast.Global) -> None:
        self._scope.elsewhere |= dict.fromkeys(node.names, self._scope.top)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        for name in node.names:
            scope = self._scope.parent
            while scope is not None and name not in scope.local_names:
                scope = scope.parent
            if scope is not None:
                self._scope.elsewhere[name] = scope

    # Branches: what only some of them bind

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        body_names, else_names = self._ends([node.body, node.orelse], set())
        names = body_names.keys() | else_names.keys()
        self._scope.names = {name: _agreed(name, body_names, else_names) for name in names}

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        exceptions = {name for handler in node.handlers for name in _exceptions(handler)}
        ends = self._ends([node.body, *([handler] for handler in node.handlers)], exceptions)
        # The bindings of the body count more than those of the handlers.
        for end in reversed(ends):
            paths = {name: path for name, path in end.items() if path is not None}
            self._scope.names = {**end, **self._scope.names, **paths}
        self._all([*node.orelse, *node.finalbody])

    def visit_TryStar(self, node: ast.TryStar) -> None:
        self.visit_Try(node)

    def _ends(
        self, branches: list[list[Any]], exceptions: set[str]
    ) -> list[dict[str, Path | None]]:
        """Visit branches, each with the present bindings; return one dict of bindings per branch.

        A dict has the bindings {name: path} after the branch. The path is None if the name is not
        TensorFlow's. `exceptions` are the exceptions that the script catches in the first branch.
        """
        initial, ends = self._scope.names, list[dict[str, Path | None]]()
        for branch in branches:
            self._scope.names = dict(initial)
            self._handled_exceptions.append(set() if ends else exceptions)
            self._all(branch)
            self._handled_exceptions.pop()
            ends.append(self._scope.names)
        return ends

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._all([node.type])
        if node.name is not None:
            self._bind(node.name, None)
        self._all(node.body)

    # Scopes

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._all(node.decorator_list)
        self._header(node.args)
        self._all([node.returns])
        self._bind(node.name, None)
        self._pending.append((node, self._enclosing))

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._header(node.args)
        self._pending.append((node, self._enclosing))

    def _header(self, arguments: ast.arguments) -> None:
        self._all([*arguments.defaults, *arguments.kw_defaults])
        self._all(parameter.annotation for parameter in _parameters(arguments))

    def _body(self, node: _Function, enclosing: _Scope) -> None:
        names = {parameter.arg for parameter in _parameters(node.args)}
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._scope = self._enclosing = _Scope(enclosing, names | _bound(body))
        self._all(body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._all([*node.decorator_list, *node.bases])
        self._all(keyword.value for keyword in node.keywords)
        outer = self._scope
        self._scope = _Scope(outer)
        self._all(node.body)
        self._scope = outer
        self._bind(node.name, None)

    def _comprehension(self, node: _Comprehension) -> None:
        # Python evaluates only the first iterable in the enclosing scope.
        first, *inner_generators = node.generators
        self.visit(first.iter)
        outer, enclosing = self._scope, self._enclosing
        self._scope = self._enclosing = _Scope(outer)
        for generator in node.generators:
            self._bind(generator.target, None)
        self._all(
            [
                *first.ifs,
                *(
                    condition
                    for generator in inner_generators
                    for condition in (generator.iter, *generator.ifs)
                ),
            ]
        )
        self._all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self._scope, self._enclosing = outer, enclosing

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension


def _below(name: str) -> Path | None:
    """Return the path of a module below one of `ROOTS`, or None."""
    segments = tuple(name.split("."))
    for root in ROOTS:
        if segments[: len(root)] == root:
            return segments[len(root) :]
    return None


def _agreed(
    name: str, body_names: Mapping[str, Path | None], else_names: Mapping[str, Path | None]
) -> Any:
    """Return the path of a name after two branches; None if they disagree on TensorFlow."""
    if name not in body_names or name not in else_names:
        return body_names.get(name, else_names.get(name))
    return None if None in (body_names[name], else_names[name]) else body_names[name]


def _exceptions(handler: ast.ExceptHandler) -> set[str]:
    """Return the names of the exceptions that a handler catches, "" for all."""
    if handler.type is None:
        return {""}
    return {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    starred = [
        parameter for parameter in (arguments.vararg, arguments.kwarg) if parameter is not None
    ]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]


def _bound(body: Iterable[ast.AST]) -> set[str]:
    """Return the local names of a function's body, without the names in nested scopes."""
    bound: set[str] = set()
    free: set[str] = set()
    pending = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
            continue
        if isinstance(node, ast.Lambda | _Comprehension):
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            free |= set(node.names)
        pending += ast.iter_child_nodes(node)
    return bound - free

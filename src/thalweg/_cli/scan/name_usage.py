"""The names of TensorFlow that a script uses, read from its text."""

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
    """The arguments of a call: how many stand by position before any `*`, and those by name."""

    positional: int
    keywords: tuple[str, ...]


class Use(NamedTuple):
    """A name in a script.

    Attributes:
        path: The whole dotted name, as far as attributes follow one another.
        line: Where it stands.
        call: What it is called with, if it is.
        module: The module that an import statement names, if it is one.
        caught: Whether the script catches that the name is missing.
    """

    path: Path
    line: int
    call: CallArguments | None = None
    module: Path | None = None
    caught: bool = False


def uses(tree: ast.Module) -> list[Use]:
    """Return the names of TensorFlow in a module, by line.

    Followed are imports, and assignments of names to names (`layers = tf.layers`), with the scopes
    of Python. What a call returns, what `import *` brings, and a name that one branch binds to
    something else are not.
    """
    finder = _UsageFinder()
    finder.module(tree)
    return sorted(set(finder.found), key=lambda use: (use.line, use.path))


class _Scope:
    """What the names of a module, class, function or comprehension stand for.

    Args:
        parent: The scope around it, in which names are looked up.
        own: Names that are bound somewhere in it, and so are never those of the parent.
    """

    def __init__(self, parent: _Scope | None = None, own: Iterable[str] = ()) -> None:
        self.parent = parent
        self.own = frozenset(own)
        self.names: dict[str, Path | None] = {}
        self.elsewhere: dict[str, _Scope] = {}  # `global` and `nonlocal`

    def lookup(self, name: str) -> Path | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            if name in scope.own:
                return None
            scope = scope.parent
        return None

    def bind(self, name: str, path: Path | None) -> None:
        self.elsewhere.get(name, self).names[name] = path

    @property
    def top(self) -> _Scope:
        return self if self.parent is None else self.parent.top


class _UsageFinder(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: list[Use] = []
        self._scope = _Scope()
        self._around: _Scope = self._scope  # what functions see: classes are left out
        self._later: list[tuple[_Function, _Scope]] = []
        self._caught: list[set[str]] = []

    def module(self, tree: ast.Module) -> None:
        """Statements first, then bodies of functions, which run when all around them is bound."""
        self._all(tree.body)
        while self._later:
            function, around = self._later.pop(0)
            self._body(function, around)

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
            caught = any("AttributeError" in names for names in self._caught)
            self.found.append(Use(path, line, call, None, caught))

    def visit_Name(self, node: ast.Name) -> None:
        path = self._path(node)
        if path is not None and isinstance(node.ctx, ast.Load):
            self._use(path, node.lineno)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path is None:
            self.visit(node.value)
        else:  # what is assigned to need not be there
            self._use(path if isinstance(node.ctx, ast.Load) else path[:-1], node.lineno)

    def visit_Call(self, node: ast.Call) -> None:
        path = self._path(node.func)
        if path is None:
            self.visit(node.func)
        else:
            starred = [isinstance(each, ast.Starred) for each in node.args]
            count = starred.index(True) if True in starred else len(starred)
            names = tuple(each.arg for each in node.keywords if each.arg is not None)
            self._use(path, node.lineno, CallArguments(count, names))
        self._all(node.args)
        self._all(each.value for each in node.keywords)

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
            own = _below(f"{node.module}.{alias.name}") if not node.level else None
            if own == ():  # from thalweg import tf
                self._bind(alias.asname or alias.name, own)
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
            caught = any(names & (_IMPORT_FAILS | _ALL_FAILS) for names in self._caught)
            self.found.append(Use(path, line, None, module, caught))

    def _bind(self, target: ast.AST | str, path: Path | None) -> None:
        if isinstance(target, str):
            self._scope.bind(target, path)
        elif isinstance(target, ast.Name):
            self._scope.bind(target.id, path)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, None)
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._bind(each, None)
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
            return  # `tf = None` where TensorFlow could not be imported
        self._bind(target, self._path(value))

    def _assign_each(self, targets: list[ast.expr], values: list[ast.expr]) -> None:
        if len(targets) == len(values):
            for target, value in zip(targets, values, strict=True):
                self._assign(target, value)
            return
        for target in targets:  # one of them has a star
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
            while scope is not None and name not in scope.own:
                scope = scope.parent
            if scope is not None:
                self._scope.elsewhere[name] = scope

    # Branches: what only some of them bind

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        one, other = self._ends([node.body, node.orelse], set())
        both = one.keys() | other.keys()
        self._scope.names = {name: _agreed(name, one, other) for name in both}

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        caught = {name for handler in node.handlers for name in _exceptions(handler)}
        ends = self._ends([node.body, *([handler] for handler in node.handlers)], caught)
        for end in reversed(ends):  # what the body binds counts; handlers are for other machines
            told = {name: path for name, path in end.items() if path is not None}
            self._scope.names = {**end, **self._scope.names, **told}
        self._all([*node.orelse, *node.finalbody])

    def visit_TryStar(self, node: ast.TryStar) -> None:
        self.visit_Try(node)

    def _ends(self, branches: list[list[Any]], caught: set[str]) -> list[dict[str, Path | None]]:
        """What names stand for at the end of each branch; exceptions of the first are caught."""
        before, ends = self._scope.names, list[dict[str, Path | None]]()
        for branch in branches:
            self._scope.names = dict(before)
            self._caught.append(set() if ends else caught)
            self._all(branch)
            self._caught.pop()
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
        self._later.append((node, self._around))

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._header(node.args)
        self._later.append((node, self._around))

    def _header(self, arguments: ast.arguments) -> None:
        self._all([*arguments.defaults, *arguments.kw_defaults])
        self._all(each.annotation for each in _parameters(arguments))

    def _body(self, node: _Function, around: _Scope) -> None:
        names = {each.arg for each in _parameters(node.args)}
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._scope = self._around = _Scope(around, names | _bound(body))
        self._all(body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._all([*node.decorator_list, *node.bases])
        self._all(each.value for each in node.keywords)
        outer = self._scope
        self._scope = _Scope(outer)
        self._all(node.body)
        self._scope = outer
        self._bind(node.name, None)

    def _comprehension(self, node: _Comprehension) -> None:
        first, *others = node.generators
        self.visit(first.iter)
        outer, around = self._scope, self._around
        self._scope = self._around = _Scope(outer)
        for each in node.generators:
            self._bind(each.target, None)
        self._all([*first.ifs, *(part for each in others for part in (each.iter, *each.ifs))])
        self._all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self._scope, self._around = outer, around

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension


def _below(name: str) -> Path | None:
    """The dotted name of a module below one of `ROOTS`; None if it is below neither."""
    parts = tuple(name.split("."))
    for root in ROOTS:
        if parts[: len(root)] == root:
            return parts[len(root) :]
    return None


def _agreed(name: str, one: Mapping[str, Path | None], other: Mapping[str, Path | None]) -> Any:
    """What a name stands for after two branches; None where only one makes it TensorFlow's."""
    if name not in one or name not in other:
        return one.get(name, other.get(name))
    return None if None in (one[name], other[name]) else one[name]


def _exceptions(handler: ast.ExceptHandler) -> set[str]:
    """The names of the exceptions that a handler catches, "" for all of them."""
    if handler.type is None:
        return {""}
    return {each.id for each in ast.walk(handler.type) if isinstance(each, ast.Name)}


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    several = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *several]


def _bound(body: Iterable[ast.AST]) -> set[str]:
    """The names that a function binds, without those of the functions and classes in it."""
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

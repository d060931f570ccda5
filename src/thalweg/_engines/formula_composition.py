"""Two formulas as one: a formula that follows another, or lies around its step."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from thalweg._base.composed_formula import ChainedFormula, ComposedFormula
from thalweg._base.wrapped_formula import StepMeasure, WrappedStepFormula
from thalweg._engines.parsed_formula import LOCAL_PREFIX, Transcript, place_of
from thalweg.errors import RuleError

_TAKEN = ("var", "grad", "base", "step")
Body = list[ast.Assign]


def compose(formula: ComposedFormula, *both: Transcript) -> Transcript:
    """One formula of two.

    Args:
        formula: A `ChainedFormula` or an `WrappedStepFormula`.
        both: The transcripts of its two.

    Raises:
        RuleError: One of them is not what it may be; names it.
    """
    if isinstance(formula, WrappedStepFormula):
        return _compose_around(formula, *both)
    return _compose_then(cast("ChainedFormula", formula), *both)


class _Renamed(ast.NodeTransformer):
    """The local names of a formula under names of their own, beside those of another."""

    def __init__(self, kept: Mapping[str, ast.expr], prefix: str) -> None:
        self._kept = kept
        self._prefix = prefix

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._kept:
            return self._kept[node.id]
        if node.id.startswith(LOCAL_PREFIX):
            return ast.Name(self._prefix + node.id.removeprefix(LOCAL_PREFIX), node.ctx)
        return node


class _Replaced(ast.NodeTransformer):
    """A formula in which some names are others."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)


def _apart(own: Transcript, given: Iterable[str], prefix: str) -> Transcript:
    """A formula none of whose slots and local names is what another one is given from outside.

    A scalar that both ask for is one, but what the formula assigns to its name is its own.
    """
    taken = [
        name
        for name in given
        if name in own.positional or LOCAL_PREFIX + name in own.assigned_names
    ]
    if not taken:
        return own
    fresh = {name: f"{prefix.removeprefix(LOCAL_PREFIX)}own_{name}" for name in taken}
    begin = [
        _assign(LOCAL_PREFIX + fresh[name], _name(LOCAL_PREFIX + name))
        for name in taken
        if name in own.scalars
    ]
    replaced = _Replaced({LOCAL_PREFIX + old: LOCAL_PREFIX + new for old, new in fresh.items()})
    return replace(
        own,
        positional=tuple(fresh.get(name, name) for name in own.positional),
        body=(*begin, *(replaced.visit(copy.deepcopy(each)) for each in own.body)),
        results=tuple(replaced.visit(copy.deepcopy(each)) for each in own.results),
        move=None if own.move is None else own.move + len(begin),
    )


def _compose_then(formula: ChainedFormula, first: Transcript, then: Transcript) -> Transcript:
    """One formula and then another, as `ChainedFormula` says."""
    if then.helpers:
        raise RuleError(f"{place_of(formula.then)} follows another formula and calls a helper.")
    prefix = _free_prefix(first, "then")
    var, *values = (LOCAL_PREFIX + name for name in then.positional)
    first = _apart(first, (*then.positional[1:], *then.scalars), prefix)
    made = first.results[0]
    body = list(first.body)
    if not isinstance(made, ast.Name):
        body.append(ast.Assign([ast.Name(f"{prefix}made", ast.Store())], made))
        made = ast.Name(f"{prefix}made", ast.Load())
    known: dict[str, ast.expr] = {var: made}
    for name in (*values, *(LOCAL_PREFIX + name for name in then.scalars)):
        known[name] = ast.Name(name, ast.Load())
    renamed = _Renamed(known, prefix)
    body += [renamed.visit(copy.deepcopy(statement)) for statement in then.body]
    own = [renamed.visit(copy.deepcopy(result)) for result in then.results]
    if values and len(own) == 1:
        own.insert(0, made)
    results = (own[0], *first.results[1:], *own[1:])
    scalars = dict.fromkeys((*first.scalars, *then.scalars))
    return Transcript(
        positional=(*first.positional, *(name.removeprefix(LOCAL_PREFIX) for name in values)),
        scalars=tuple(scalars),
        body=tuple(ast.fix_missing_locations(each) for each in body),
        results=tuple(ast.fix_missing_locations(each) for each in results),
        helpers=first.helpers,
        filename=first.filename,
    )


def _compose_around(around: WrappedStepFormula, own: Transcript, how: Transcript) -> Transcript:
    """One formula around the step of another, as `WrappedStepFormula` says."""
    if how.helpers or how.positional != _TAKEN or len(how.results) != 1:
        raise RuleError(
            f"{place_of(around.how)} lies around a step: it takes {', '.join(_TAKEN)} and scalars,"
            " returns one value, and calls no helpers."
        )
    prefix = _free_prefix(own, "around")
    own, var, grad = _as_given(_apart(own, how.scalars, prefix))
    before, base, step = _step_of(around, own, var, prefix)
    given = {"var": var, "grad": grad, "base": base, "step": step}
    given |= {name: _name(LOCAL_PREFIX + name) for name in how.scalars}
    known: dict[str, ast.expr] = {}
    for name, value in given.items():
        local = LOCAL_PREFIX + name
        if isinstance(value, ast.Name) and local not in how.assigned_names:
            known[local] = value
        else:
            before.append(_assign(f"{prefix}{name}", value))
    renamed = _Renamed(known, prefix)
    first = len(before)
    before += [renamed.visit(copy.deepcopy(each)) for each in how.body]
    made = renamed.visit(copy.deepcopy(how.results[0]))
    scalars = tuple(dict.fromkeys((*own.scalars, *how.scalars)))
    if isinstance(around, StepMeasure):
        return _needed(replace(own, scalars=scalars), before, made)
    rest, results = (), (made, *own.results[1:])
    if own.move is not None and own.move < len(own.body):
        # The variable has a name, which what follows may read.
        named = ast.Assign(list(own.body[own.move].targets), made)
        rest, results = (named, *own.body[own.move + 1 :]), own.results
    return replace(
        own,
        scalars=scalars,
        body=tuple(map(ast.fix_missing_locations, (*before, *rest))),
        results=tuple(map(ast.fix_missing_locations, results)),
        move=None if how.move is None else first + how.move,
    )


def _as_given(own: Transcript) -> tuple[Transcript, ast.Name, ast.Name]:
    """Variable and gradient under names that are given to nothing else before the step."""
    positional, begin = list(own.positional), Body()
    assigned = _names(own.body[: own.move], ast.Store)
    for index, name in enumerate(own.positional[:2]):
        if LOCAL_PREFIX + name in assigned:
            positional[index] = f"_given_{name}"
            given = _name(f"{LOCAL_PREFIX}_given_{name}")
            begin.append(_assign(LOCAL_PREFIX + name, given))
    move = None if own.move is None else own.move + len(begin)
    made = replace(own, positional=tuple(positional), body=(*begin, *own.body), move=move)
    var, grad = (_name(LOCAL_PREFIX + name) for name in positional[:2])
    return made, var, grad


def _step_of(
    around: WrappedStepFormula, own: Transcript, var: ast.Name, prefix: str
) -> tuple[Body, ast.expr, ast.expr]:
    """What comes before the step, its base, and the step."""
    values = [*(statement.value for statement in own.body), own.results[0]]
    found = None if own.move is None else values[own.move]
    base = found.left if isinstance(found, ast.BinOp) else var
    if around.decays and isinstance(base, ast.Name) and base.id == var.id:
        raise RuleError(
            f"{place_of(around.formula)} has no decay beside its step, as that which returns"
            " `moved(var * share, step)`."
        )
    if not isinstance(found, ast.BinOp):
        made = _name(f"{prefix}made")
        begin = [*own.body, _assign(made.id, own.results[0])]
        return begin, base, ast.BinOp(made, ast.Sub(), var)
    is_back = isinstance(found.op, ast.Sub)
    step = ast.UnaryOp(ast.USub(), found.right) if is_back else found.right
    return list(own.body[: own.move]), base, step


def _needed(own: Transcript, body: Sequence[ast.Assign], result: ast.expr) -> Transcript:
    """The formula of one result, without what that does not follow from."""
    wanted, kept = _names([result], ast.Load), Body()
    for statement in reversed(body):
        (target,) = _names(statement.targets, ast.Store)
        if target in wanted:
            wanted = (wanted - {target}) | _names([statement.value], ast.Load)
            kept.insert(0, ast.fix_missing_locations(statement))
    scalars = tuple(name for name in own.scalars if LOCAL_PREFIX + name in wanted)
    results = (ast.fix_missing_locations(result),)
    return replace(own, scalars=scalars, body=tuple(kept), results=results, move=None)


def _free_prefix(own: Transcript, word: str) -> str:
    """What no name of the formula begins with: the word and a number."""
    known = _names([*own.body, *own.results], (ast.Load, ast.Store))
    known |= {LOCAL_PREFIX + name for name in (*own.positional, *own.scalars)}
    number = 0
    while any(name.startswith(f"{LOCAL_PREFIX}{word}{number}_") for name in known):
        number += 1
    return f"{LOCAL_PREFIX}{word}{number}_"


def _names(trees: Iterable[ast.AST], kind: type | tuple[type, ...]) -> set[str]:
    nodes = (node for tree in trees for node in ast.walk(tree))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, kind)}


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)

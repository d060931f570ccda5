"""What one call adds to a graph as one update, whoever wrote what is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from itertools import islice
from typing import Any

from thalweg.graph.control import group
from thalweg.graph.default import get_default_graph
from thalweg.graph.nest import leaves_of
from thalweg.graph.nodes import Nodes, Operation
from thalweg.running import executing_eagerly, is_ours
from thalweg.tracing import untraced


def apply_as_one_update(cls: type[Any], base: type[Any]) -> None:
    """Let what each call of `apply_gradients` adds to a graph be one update.

    Args:
        cls: A new class, which has that method itself or from a mixin, or from other classes that
            were derived from `base`.
        base: The class of all optimizers, whose own method needs nothing.
    """
    owner = next(each for each in cls.__mro__ if "apply_gradients" in vars(each))
    own = vars(owner)["apply_gradients"]
    is_mixin = not (issubclass(owner, base) or is_ours(own))
    if inspect.isfunction(own) and (owner is cls or is_mixin):
        cls.apply_gradients = as_one_update(own)


def as_one_update(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let what each call of a method adds to a graph be one update, or part of that around it.

    What torch's functions write in place comes before what the method returns, if only that.
    """

    @untraced
    def called(*args: Any, **kwargs: Any) -> Any:
        if executing_eagerly():
            return method(*args, **kwargs)
        graph = get_default_graph()
        with graph.as_one():
            return after_writes(graph, method(*args, **kwargs))

    return functools.wraps(method)(called)


def after_writes(graph: Nodes, made: Any) -> Any:
    """What has been made in a unit, or an operation after it and all that was written in place."""
    last: Any = () if graph.unit is None else graph.unit.last
    found = [getattr(each, "op", each) for each in leaves_of(made)]
    if not last or max((getattr(op, "index", -1) for op in found), default=-1) > last[0].index:
        return made
    return group(*(op for op in found if isinstance(op, Operation)))


def updates_since(graph: Nodes, before: int) -> list[Operation]:
    """The updates of the present unit that were made since a graph had `before` operations."""
    made = islice(graph.operations.values(), before, None)
    place = graph.unit, graph.block
    return [op for op in made if op.kind == "update" and (op.unit, op.block) == place]

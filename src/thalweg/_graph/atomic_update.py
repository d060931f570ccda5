"""Grouping of the operations that one call adds to a graph into one update."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from thalweg._core.nest import leaves_of
from thalweg._graph.control import group
from thalweg._graph.default_graph import get_default_graph
from thalweg._graph.nodes import Nodes, Operation


def as_one_update(call: Callable[[], object]) -> Any:
    """Return the result of a call whose operations are one update, or part of the update around it.

    In-place writes of torch's functions come before the result of the call, if only that.
    """
    graph = get_default_graph()
    with graph.as_one():
        return after_writes(graph, call())


def after_writes(graph: Nodes, outcome: object) -> Any:
    """Return the result of a unit, or an operation after it and after all in-place writes."""
    tail: Any = () if graph.unit is None else graph.unit.last_writes
    nodes = [getattr(leaf, "op", leaf) for leaf in leaves_of(outcome)]
    if not tail or max((getattr(op, "index", -1) for op in nodes), default=-1) > tail[0].index:
        return outcome
    return group(*(op for op in nodes if isinstance(op, Operation)))


def updates_since(graph: Nodes, start: int) -> list[Operation]:
    """Return the updates of the present unit that were made since a graph had `start`
    operations.
    """
    new_operations = islice(graph.operations.values(), start, None)
    place = graph.unit, graph.block
    return [op for op in new_operations if op.kind == "update" and (op.unit, op.block) == place]

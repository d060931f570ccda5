"""Combination of all operations that one call adds to a graph into one update."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from thalweg._core.nest import leaves_of
from thalweg._graph.control import group
from thalweg._graph.default_graph import get_default_graph
from thalweg._graph.nodes import Nodes, Operation


def as_one_update(call: Callable[[], object]) -> Any:
    """Call `call()`; return the result. All operations that the call adds form one update.

    If the call wrote in place after computing the result, return an operation after both.
    """
    graph = get_default_graph()
    with graph.as_one():
        return after_writes(graph, call())


def after_writes(graph: Nodes, outcome: object) -> Any:
    """Return `outcome`, or an operation after `outcome` and all in-place writes of the unit."""
    tail: Any = () if graph.unit is None else graph.unit.last_writes
    nodes = [getattr(leaf, "op", leaf) for leaf in leaves_of(outcome)]
    # An operation that was added after the last write waits for it already.
    if not tail or max((getattr(op, "index", -1) for op in nodes), default=-1) > tail[0].index:
        return outcome
    return group(*(op for op in nodes if isinstance(op, Operation)))


def updates_since(graph: Nodes, start: int) -> list[Operation]:
    """Return the updates of the current unit, without the first `start` operations of the graph."""
    new_operations = islice(graph.operations.values(), start, None)
    unit_and_block = graph.unit, graph.block
    return [
        op for op in new_operations if op.kind == "update" and (op.unit, op.block) == unit_and_block
    ]

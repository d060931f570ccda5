"""Collective operations of replicas in a graph: each rank runs the operation at the same place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from thalweg._base.execution_context import is_symbolic
from thalweg._graph.arguments import by_reference, densify
from thalweg._graph.operation import operation
from thalweg._graph.shapes import Output
from thalweg._graph.symbolic_slices import SymbolicSlices
from thalweg._graph.variables import GraphVariable
from thalweg.distribute.context import Replicas
from thalweg.distribute.handshake import PendingCollective, raise_on_all
from thalweg.distribute.nested_all_reduce import reduce_leaves
from thalweg.distribute.reduce_op import ReduceOp
from thalweg.distribute.variable import in_replicas, of_all
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import VariableAggregation, to_tensor


def all_reduce(
    strategy: Replicas, op: ReduceOp, leaves: Sequence[object], axis: int | None
) -> list[Any]:
    """See `GraphMode`."""
    present = [place for place, leaf in enumerate(leaves) if leaf is not None]
    given = [_as_value(leaves[place]) for place in present]
    made = operation(
        lambda values: reduce_leaves(strategy, op, values, axis),
        [given],
        "all_reduce",
        kind="pure",
        outputs=[_output_of(leaf, op, axis) for leaf in given],
    )
    ranks = strategy.ranks
    for output in made[:1]:  # what fails before it in a run is told to the ranks that wait there
        output.op.abandoned = partial(raise_on_all, ranks, PendingCollective.VALUES)
    found: list[Any] = [None] * len(leaves)
    for place, output in zip(present, made, strict=True):
        is_sparse = isinstance(leaves[place], SymbolicSlices | IndexedSlices)
        output.may_be_sparse = is_sparse
        found[place] = SymbolicSlices.of(output) if is_sparse else output
    return found


def _as_value(leaf: object) -> object:
    is_one = is_symbolic(leaf) or isinstance(leaf, IndexedSlices)
    return leaf if is_one else to_tensor(leaf)


def _output_of(leaf: Any, op: ReduceOp, axis: int | None) -> Output:
    """What is known of a result before a run: only means and sums along an axis change dtypes."""
    shape = getattr(leaf, "shape", None) if axis is None else None
    if leaf.dtype is None:
        return Output(None, shape, ())
    like = torch.zeros(1, dtype=leaf.dtype, device="cpu")
    like = like if axis is None else like.sum(0)
    return Output((like if op is ReduceOp.SUM else like / 1).dtype, shape, ())


class AggregatedGraphVariable(GraphVariable):
    """Variable of a graph whose assignments in a replica are aggregated when a session runs them.

    See `thalweg.distribute.variable.AggregatedVariable`.
    """

    _aggregation: VariableAggregation

    def _operand(self, value: object) -> object:
        own, strategy = super()._operand(value), in_replicas()
        if strategy is None:
            return own
        made = operation(
            partial(of_all, strategy, self._aggregation),
            [by_reference(self), densify(own)],
            "all_reduce",
            kind="pure",
            outputs=Output(self.dtype, self.shape, ()),
        )
        made.op.abandoned = partial(raise_on_all, strategy.ranks, PendingCollective.VALUES)
        return made


def aggregate(variable: GraphVariable, aggregation: VariableAggregation) -> None:
    """See `GraphMode`."""
    variable.__class__ = AggregatedGraphVariable
    variable._aggregation = aggregation  # pyright: ignore[reportAttributeAccessIssue]

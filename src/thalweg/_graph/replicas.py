"""Collective operations in graphs. All ranks build equal graphs and make equal runs."""

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
    """Return the sum or mean of each tensor over all replicas, as symbolic tensors or slices.

    None stays None. If `axis` is not None, also reduce each tensor along `axis`.
    """
    present = [index for index, leaf in enumerate(leaves) if leaf is not None]
    present_leaves = [_as_value(leaves[index]) for index in present]
    nodes = operation(
        lambda values: reduce_leaves(strategy, op, values, axis),
        [present_leaves],
        "all_reduce",
        kind="pure",
        outputs=[_output_of(leaf, op, axis) for leaf in present_leaves],
    )
    ranks = strategy.ranks
    # If a run fails before this operation, the ranks that wait in it get the error.
    for output in nodes[:1]:
        output.op.abandoned = partial(raise_on_all, ranks, PendingCollective.VALUES)
    outputs: list[Any] = [None] * len(leaves)
    for index, output in zip(present, nodes, strict=True):
        is_sparse = isinstance(leaves[index], SymbolicSlices | IndexedSlices)
        output.may_be_sparse = is_sparse
        outputs[index] = SymbolicSlices.of(output) if is_sparse else output
    return outputs


def _as_value(leaf: object) -> object:
    """Return a leaf as a symbolic tensor or slices; None stays None."""
    has_form = is_symbolic(leaf) or isinstance(leaf, IndexedSlices)
    return leaf if has_form else to_tensor(leaf)


def _output_of(leaf: Any, op: ReduceOp, axis: int | None) -> Output:
    """Return the static description of a result; means and sums along an axis change dtypes."""
    shape = getattr(leaf, "shape", None) if axis is None else None
    if leaf.dtype is None:
        return Output(None, shape, ())
    # torch itself says the dtype: a sum of small integers is int64, a quotient is a float.
    template = torch.zeros(1, dtype=leaf.dtype, device="cpu")
    template = template if axis is None else template.sum(0)
    return Output((template if op is ReduceOp.SUM else template / 1).dtype, shape, ())


class AggregatedGraphVariable(GraphVariable):
    """Graph variable that aggregates assigned values over replicas when a session runs.

    See `thalweg.distribute.variable.AggregatedVariable`.
    """

    _aggregation: VariableAggregation

    def _operand(self, value: object) -> object:
        """Return the value to assign, aggregated over replicas inside of `Strategy.run`."""
        operand, strategy = super()._operand(value), in_replicas()
        if strategy is None:
            return operand
        reduced = operation(
            partial(of_all, strategy, self._aggregation),
            [by_reference(self), densify(operand)],
            "all_reduce",
            kind="pure",
            outputs=Output(self.dtype, self.shape, ()),
        )
        reduced.op.abandoned = partial(raise_on_all, strategy.ranks, PendingCollective.VALUES)
        return reduced


def aggregate(variable: GraphVariable, aggregation: VariableAggregation) -> None:
    """Let later assignments of a variable in replicas aggregate; change its class in place."""
    variable.__class__ = AggregatedGraphVariable
    variable._aggregation = aggregation  # pyright: ignore[reportAttributeAccessIssue]

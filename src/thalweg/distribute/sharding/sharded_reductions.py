"""Reductions over full variables from local parts, with the bits of a step on one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.protocol import Columns, Formulas, Stages, StepPlan, StepRequest
from thalweg._engines.reduction_order import LEAF, combine_leaves, leaf_counts
from thalweg._engines.tensor_reductions import Tensors
from thalweg.distribute.sharding.shards import Shards
from thalweg.indexed_slices import IndexedSlices


class ShardedReductions:
    """Reductions of a step over the parts of all ranks.

    Leaves are sent to all ranks and added as on one rank. Rows of sparse gradients are on all
    ranks, which reduce them locally.

    Args:
        shards: The assignment of elements to ranks.
        plan: The step over this rank's parts.
        request: The step over full variables, with the original sparse gradients.
        meet: Called before messages are sent.
    """

    def __init__(
        self, shards: Shards, plan: StepPlan, request: StepRequest, meet: Callable[[], None]
    ) -> None:
        self._shards, self._plan, self._request, self._meet = shards, plan, request, meet

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """Return, per formula, the sums over each full variable; see `StepPlan`."""
        request = self._request
        local_leaves = self._plan.compute_leaves(formulas, stages, columns)
        sums = np.zeros((len(local_leaves), len(formulas)))
        rows: list[int] = []
        dense: list[int] = []
        for index, grad in enumerate(request.gradients):
            (rows if isinstance(grad, IndexedSlices) else dense).append(index)
        flush = request.selection.denormals == "flush"
        for index in rows:
            tensors = Tensors([request.gradients[index].values], [request.variables[index]], flush)
            sums[index] = np.concatenate(
                tensors.compute_sums(formulas, stages, columns.of_members([index]))
            )
        if dense:
            dense_leaves = np.concatenate([local_leaves[index] for index in dense])
            sums[dense] = self._combine_leaves(dense, np.ascontiguousarray(dense_leaves))
        return list(sums.T)

    def _combine_leaves(self, indices: Sequence[int], local_leaves: Float64) -> Float64:
        """Return the sums of the variables at `indices` from the leaves of all ranks."""
        ranks = self._shards.ranks
        variables = [self._request.variables[index] for index in indices]
        counts = leaf_counts([var.numel() for var in variables])
        offsets = np.cumsum(counts) - counts
        leaf_indices: list[list[Int64]] = [[] for _ in range(ranks.size)]
        for var, offset in zip(variables, offsets, strict=True):
            for rank, start, stop in self._shards.pieces(var):
                leaf_indices[rank].append(
                    np.arange(offset + start // LEAF, offset - (-stop // LEAF))
                )
        width = local_leaves.shape[1]
        leaves = np.empty((int(counts.sum()), width))
        parts = [
            torch.empty(sum(map(len, runs)), width, dtype=torch.float64, device=ranks.device)
            for runs in leaf_indices
        ]
        parts[ranks.rank].copy_(torch.from_numpy(local_leaves))  # pyright: ignore[reportUnknownMemberType]
        self._meet()
        ranks.begin_sharing(parts).wait()
        for runs, part in zip(leaf_indices, parts, strict=True):
            if runs:
                leaves[np.concatenate(runs)] = part.cpu().numpy()
        return combine_leaves(leaves, counts)

    def sums_on_device(self, formulas: Formulas, stages: Stages, columns: Columns) -> None:
        """Do nothing: sums over ranks are computed by `compute_sums` alone."""

    def max_abs(self) -> Float64:
        """Return the largest gradient magnitude of each full variable."""
        # As whole numbers, magnitudes have the same order, and NaN is the largest.
        bits = np.abs(self._plan.max_abs()).view(np.int64)
        max_bits = torch.from_numpy(bits).to(self._shards.ranks.device)  # pyright: ignore[reportUnknownMemberType]
        self._meet()
        self._shards.ranks.take_maximum(max_bits)
        return max_bits.cpu().numpy().view(np.float64)

    def max_abs_on_device(self, is_checked: torch.Tensor) -> None:
        """Do nothing: maxima over ranks are computed by `max_abs` alone."""

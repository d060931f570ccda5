"""Measures of whole variables, of which each rank sees a part: the bits of a step on one rank."""

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
    """Measures of a step over the parts of all ranks.

    Leaves are sent to all ranks and added up as on one. Rows of sparse gradients are on all ranks,
    which measure them themselves.

    Args:
        shards: The parts of each rank.
        ready: The step over this rank's parts.
        asked: The step over whole variables, with sparse gradients as they came.
        meet: Called before messages are sent.
    """

    def __init__(
        self, shards: Shards, ready: StepPlan, asked: StepRequest, meet: Callable[[], None]
    ) -> None:
        self._shards, self._ready, self._asked, self._meet = shards, ready, asked, meet

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `StepPlan`."""
        asked = self._asked
        own = self._ready.compute_leaves(formulas, stages, columns)
        found = np.zeros((len(own), len(formulas)))
        rows: list[int] = []
        dense: list[int] = []
        for place, grad in enumerate(asked.gradients):
            (rows if isinstance(grad, IndexedSlices) else dense).append(place)
        flush = asked.selection.denormals == "flush"
        for place in rows:
            tensors = Tensors([asked.gradients[place].values], [asked.variables[place]], flush)
            found[place] = np.concatenate(
                tensors.compute_sums(formulas, stages, columns.of_members([place]))
            )
        if dense:
            mine = np.concatenate([own[place] for place in dense])
            found[dense] = self._combine_leaves(dense, np.ascontiguousarray(mine))
        return list(found.T)

    def _combine_leaves(self, places: Sequence[int], own: Float64) -> Float64:
        """The sums of variables, of the leaves that this rank has of each."""
        ranks = self._shards.ranks
        variables = [self._asked.variables[place] for place in places]
        counts = leaf_counts([var.numel() for var in variables])
        begins = np.cumsum(counts) - counts
        homes: list[list[Int64]] = [[] for _ in range(ranks.size)]
        for var, begin in zip(variables, begins, strict=True):
            for rank, start, stop in self._shards.pieces(var):
                homes[rank].append(np.arange(begin + start // LEAF, begin - (-stop // LEAF)))
        leaves = np.empty((int(counts.sum()), own.shape[1]))
        parts = [
            torch.empty(sum(map(len, each)), own.shape[1], dtype=torch.float64, device=ranks.device)
            for each in homes
        ]
        parts[ranks.rank].copy_(torch.from_numpy(own))  # pyright: ignore[reportUnknownMemberType]
        self._meet()
        ranks.begin_sharing(parts).wait()
        for each, part in zip(homes, parts, strict=True):
            if each:
                leaves[np.concatenate(each)] = part.cpu().numpy()
        return combine_leaves(leaves, counts)

    def sums_on_device(self, formulas: Formulas, stages: Stages, columns: Columns) -> None:
        """See `StepPlan`."""

    def max_abs(self) -> Float64:
        """See `StepPlan`."""
        # As whole numbers, magnitudes have the same order, and NaN is the largest.
        bits = np.abs(self._ready.max_abs()).view(np.int64)
        found = torch.from_numpy(bits).to(self._shards.ranks.device)  # pyright: ignore[reportUnknownMemberType]
        self._meet()
        self._shards.ranks.take_maximum(found)
        return found.cpu().numpy().view(np.float64)

    def max_abs_on_device(self, is_checked: torch.Tensor) -> None:
        """See `StepPlan`."""

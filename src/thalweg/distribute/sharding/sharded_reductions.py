"""Reductions (sums and peaks) over full variables, computed from the parts on each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._core.dtensor import is_on_mesh
from thalweg._core.grads_and_vars import Pair
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.protocol import Columns, Reduction, Reductions, as_array
from thalweg._engines.reduction_order import LEAF, combine_leaves, leaf_counts
from thalweg._engines.tensor_reductions import Tensors
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding.matrix_group import MatrixProcessGroup, cut_dims
from thalweg.distribute.sharding.shards import Shards
from thalweg.distribute.tree_reduction import tree_sum
from thalweg.indexed_slices import IndexedSlices


class ShardedReductions:
    """Reductions of a step with sharded slots, over the parts of all ranks.

    Leaves (partial sums) are sent to all ranks and added as on one rank. Sparse gradients are full
    on each rank, which reduces them locally.

    Args:
        shards: The assignment of elements to ranks.
        local_reductions: Reductions over this rank's parts.
        pairs: The full variables, with the original sparse gradients.
        flush: Whether stages treat denormals as zero.
        synchronize: `synchronize()` is called before messages are sent.
    """

    def __init__(
        self,
        shards: Shards,
        local_reductions: Reductions,
        pairs: Sequence[Pair],
        flush: bool,
        synchronize: Callable[[], None],
    ) -> None:
        self._shards, self._local_reductions, self._pairs = shards, local_reductions, pairs
        self._flush, self._synchronize = flush, synchronize

    device = None

    def reduce(self, reduction: Reduction, columns: Columns) -> Float64:
        """Return sums or peaks (largest magnitudes) of full variables, on the host.

        All ranks must call this method. `columns` has the scalars of the formulas in `reduction`.

        Raises:
            NotImplementedError: `reduction.kind` is neither "sums" nor "peaks".
        """
        if reduction.kind == "peaks":
            peaks = as_array(self._local_reductions.reduce(reduction, columns))
            self._synchronize()
            return largest_over(peaks, [self._shards.ranks])
        if reduction.kind != "sums":
            raise NotImplementedError(f"shards have no {reduction.kind} of full variables")
        local_reduction = replace(reduction, kind="leaves")
        local_results = cast(
            "list[Float64]", self._local_reductions.reduce(local_reduction, columns)
        )
        sums = np.zeros((len(local_results), len(reduction.formulas)))
        dense: list[int] = []
        for index, (grad, var) in enumerate(self._pairs):
            if isinstance(grad, IndexedSlices):
                rows = Tensors([grad.values], [var], self._flush)
                sums[index] = rows.reduce(reduction, columns.of_members([index]))
            else:
                dense.append(index)
        if dense:
            dense_leaves = np.concatenate([local_results[index] for index in dense])
            sums[dense] = self._combine_leaves(dense, np.ascontiguousarray(dense_leaves))
        return sums

    def _combine_leaves(self, indices: Sequence[int], local_leaves: Float64) -> Float64:
        """Return the sums of the variables at `indices`; all ranks must call this method.

        `local_leaves` has this rank's partial sums over fixed ranges of elements. The partial sums
        of all ranks are added in a fixed order.
        """
        ranks = self._shards.ranks
        variables = [self._pairs[index][1] for index in indices]
        counts = leaf_counts([var.numel() for var in variables])
        offsets = np.cumsum(counts) - counts
        leaf_indices: list[list[Int64]] = [[] for _ in range(ranks.size)]
        for var, offset in zip(variables, offsets, strict=True):
            for rank, start, stop in self._shards.pieces(var):
                leaf_indices[rank].append(
                    np.arange(offset + start // LEAF, offset - (-stop // LEAF), dtype=np.int64)
                )
        width = local_leaves.shape[1]
        leaves = np.empty((int(counts.sum()), width))
        buffers = [
            torch.empty(sum(map(len, runs)), width, dtype=torch.float64, device=ranks.device)
            for runs in leaf_indices
        ]
        buffers[ranks.rank].copy_(torch.from_numpy(local_leaves))  # pyright: ignore[reportUnknownMemberType]
        self._synchronize()
        ranks.begin_sharing(buffers).wait()
        for runs, buffer in zip(leaf_indices, buffers, strict=True):
            if runs:
                leaves[np.concatenate(runs)] = buffer.cpu().numpy()
        return combine_leaves(leaves, counts)


class DTensorReductions:
    """Reductions of a step over full DTensors, from reductions over local parts.

    Sums are added in the order of the ranks along the sharded mesh dimensions.

    Args:
        local_reductions: Reductions over this rank's parts.
        variables: The full variables.
        group: Optional. The ranks that have parts, if they compare the step before messages.
    """

    device = None

    def __init__(
        self,
        local_reductions: Reductions,
        variables: Sequence[Tensor],
        group: MatrixProcessGroup | None,
    ) -> None:
        self._local_reductions, self._group = local_reductions, group
        self._cut = group_by_mesh(variables)

    def reduce(self, reduction: Reduction, columns: Columns) -> Float64:
        """Return sums or peaks (largest magnitudes) of full variables, on the host.

        All ranks with parts must call this method. `columns` has the scalars of the formulas.
        """
        values = as_array(self._local_reductions.reduce(reduction, columns))
        if self._group is not None:
            cut_counts = [len(rows) for rows in self._cut.values()]
            self._group.meet(cut_counts, *[len(reduction.formulas)] * (reduction.kind == "sums"))
        over_ranks = {"sums": sums_over, "peaks": largest_over}[reduction.kind]
        for (mesh, *dims), indices in self._cut.items():
            ranks = [Ranks(mesh.get_group(dim)) for dim in dims]
            values[indices] = over_ranks(values[indices], ranks)
        return values


def sums_over(values: Float64, groups: Sequence[Ranks]) -> Float64:
    """Return the sums of numbers over ranks, group after group, each in tree order."""
    totals = torch.from_numpy(values)  # pyright: ignore[reportUnknownMemberType]
    for ranks in groups:
        totals = tree_sum(ranks.all_gather(totals.to(ranks.device)))
    return totals.cpu().numpy()


def largest_over(magnitudes: Float64, groups: Sequence[Ranks]) -> Float64:
    """Return the largest of magnitudes over ranks; NaN if one is NaN."""
    # As whole numbers, magnitudes have the same order, and NaN is the largest.
    bits = torch.from_numpy(np.abs(magnitudes).view(np.int64))  # pyright: ignore[reportUnknownMemberType]
    for ranks in groups:
        bits = bits.to(ranks.device)
        ranks.take_maximum(bits)
    return bits.cpu().numpy().view(np.float64)


def group_by_mesh(variables: Sequence[Tensor]) -> dict[tuple[Any, ...], list[int]]:
    """Return the indices of DTensors by mesh and sharded mesh dimensions."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, var in enumerate(variables):
        if is_on_mesh(var):
            dtensor: Any = var
            groups.setdefault((dtensor.device_mesh, *cut_dims(var)), []).append(index)
    return groups

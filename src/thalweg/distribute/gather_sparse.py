"""Rows of sparse gradients, brought together from all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thalweg.distribute.process_group import Ranks
from thalweg.indexed_slices import IndexedSlices


def gather_rows(slices: Sequence[IndexedSlices], ranks: Ranks) -> list[IndexedSlices]:
    """For each of the slices the rows of all ranks, one rank after the other."""
    if not slices:
        return []
    row_counts = [len(each.indices) for each in slices]
    own = torch.tensor(row_counts, dtype=torch.int64, device=slices[0].device)
    counts = torch.stack(ranks.all_gather(own), 1).tolist()
    return [
        IndexedSlices(
            _gather_padded(each.values, count, ranks),
            _gather_padded(each.indices, count, ranks),
            each.dense_shape,
        )
        for each, count in zip(slices, counts, strict=True)
    ]


def _gather_padded(part: Tensor, counts: Sequence[int], ranks: Ranks) -> Tensor:
    # Collectives want one shape on all ranks.
    padded = part.new_zeros((max(counts), *part.shape[1:]))
    if not padded.numel():
        return part.new_zeros((sum(counts), *part.shape[1:]))
    padded[: len(part)] = part
    found = ranks.all_gather(padded)
    return torch.cat([rows[:count] for rows, count in zip(found, counts, strict=True)])

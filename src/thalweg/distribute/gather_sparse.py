"""All-gather of the rows of sparse gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thalweg.distribute.process_group import Ranks
from thalweg.indexed_slices import IndexedSlices


def gather_rows(slices: Sequence[IndexedSlices], ranks: Ranks) -> list[IndexedSlices]:
    """Return new sparse gradients, each with the rows of all ranks, in the order of ranks.

    Rows of the same index are kept apart, not added. The number of rows may differ between ranks.
    All ranks must call this function with the same number of gradients, which is not checked.
    """
    if not slices:
        return []
    row_counts = [len(grad.indices) for grad in slices]
    local_counts = torch.tensor(row_counts, dtype=torch.int64, device=slices[0].device)
    counts = torch.stack(ranks.all_gather(local_counts), 1).tolist()
    return [
        IndexedSlices(
            _gather_padded(grad.values, count, ranks),
            _gather_padded(grad.indices, count, ranks),
            grad.dense_shape,
        )
        for grad, count in zip(slices, counts, strict=True)
    ]


def _gather_padded(part: Tensor, counts: Sequence[int], ranks: Ranks) -> Tensor:
    """Return the concatenated rows of all ranks; `counts` is the number of rows of each rank."""
    # Collectives need one shape on all ranks.
    padded = part.new_zeros((max(counts), *part.shape[1:]))
    if not padded.numel():
        return part.new_zeros((sum(counts), *part.shape[1:]))
    padded[: len(part)] = part
    padded_parts = ranks.all_gather(padded)
    return torch.cat([rows[:count] for rows, count in zip(padded_parts, counts, strict=True)])

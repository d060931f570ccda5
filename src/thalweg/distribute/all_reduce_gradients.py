"""All-reduce of gradients.

The ranks first exchange which variables have a gradient, and of which kind. Every rank then calls
the same collectives in the same order. No tensor is written before all messages have arrived.
"""

# torch does not annotate `Tensor.tolist`.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg.distribute.bucketed_all_reduce import Sender
from thalweg.distribute.buckets import Bucket, Sending
from thalweg.distribute.consistency_check import hash_bytes
from thalweg.distribute.gradient_kinds import GradientKind, kind_of
from thalweg.distribute.handshake import PendingCollective, RankMessage, compare_lines
from thalweg.distribute.process_group import Ranks
from thalweg.indexed_slices import Gradient, IndexedSlices
from thalweg.variable import titles_of

MaybePair = tuple[Gradient, Any]


def fill_missing(pairs: Iterable[Any], ranks: Ranks) -> list[Any]:
    """Return (gradient, variable) pairs; a None becomes zeros if another rank has a gradient.

    Zeros for a sparse gradient have no rows. A gradient that is None on all ranks stays None. Row
    indices become int64 if another rank has int64. All ranks must call this function, with equal
    numbers of pairs.

    Raises:
        ReplicaMismatchError: Sparsity or dtype of a gradient differs between ranks.
    """
    pairs = list(pairs)
    if not pairs or ranks.is_alone:
        return pairs
    local_marks = [GradientKind.of(grad, var).to_marks() for grad, var in pairs]
    # The maximum of flags is their union over the ranks.
    marks = torch.tensor(local_marks, dtype=torch.uint8, device=ranks.device)
    ranks.take_maximum(marks)
    kinds = [GradientKind.from_marks(row) for row in cast("list[list[int]]", marks.tolist())]
    for kind, name in zip(kinds, _names_of(pairs), strict=True):
        kind.check_same(name)
    return [(kind.fill(grad, var), var) for kind, (grad, var) in zip(kinds, pairs, strict=True)]


def match_kinds(pairs: Sequence[MaybePair], ranks: Ranks) -> list[MaybePair]:
    """Return the pairs; a None becomes zeros if another rank has a gradient.

    All ranks must call this function. Unlike `fill_missing`, it sends only one short message if
    number, shapes, dtypes and sparsity of the gradients are equal on all ranks.

    Raises:
        ReplicaMismatchError: Ranks have different numbers of pairs, or gradients that differ in
            shape, dtype or sparsity. Every rank raises this error.
    """
    local_kinds = [None if grad is None else (kind_of(grad), _shape_of(grad)) for grad, _ in pairs]
    digest = hash_bytes(repr(local_kinds).encode())
    if RankMessage(ranks, PendingCollective.VALUES, [digest]).receive().are_equal[0]:
        return list(pairs)
    # `fill_missing` sends a tensor, which needs one shape on all ranks.
    compare_lines(ranks, [f"the number of values: {len(pairs)}"])
    filled_pairs, names = fill_missing(pairs, ranks), _names_of(pairs)
    # Before filling, a None would differ from the shape on other ranks.
    shapes = ["None" if grad is None else str(_shape_of(grad)) for grad, _ in filled_pairs]
    compare_lines(ranks, [f"the shape of {name}: {shape}" for name, shape in zip(names, shapes)])
    return filled_pairs


def _shape_of(grad: Tensor | IndexedSlices) -> tuple[int, ...]:
    """Return the shape of a dense gradient, or of one row of sparse rows."""
    return tuple(grad.values.shape[1:] if isinstance(grad, IndexedSlices) else grad.shape)


def _names_of(pairs: Sequence[Any]) -> list[str]:
    """Return one name per pair for messages: "the gradient of 'w'", or "value 0" if nameless."""
    variables = [var for _, var in pairs]
    if any(var is None for var in variables):
        return [f"value {index}" for index in range(len(variables))]
    return [f"the gradient of '{name}'" for name in titles_of(variables)]


def sum_pairs(
    pairs: Iterable[MaybePair], ranks: Ranks, sending: Sending | None = None
) -> list[MaybePair]:
    """Return the pairs with each gradient summed over all ranks.

    None counts as zeros. A gradient that is None on all ranks stays None. Sparse rows are
    concatenated, not added: a row index may occur twice. Row indices become int64 if another rank
    has int64. Sums are new tensors. A single rank returns the pairs of the argument.

    Args:
        pairs: (gradient, variable) pairs, with the same variables on every rank. If the variable is
            None, the gradient must be None on all ranks or on none.
        sending: Optional. The settings of the transfer.

    Raises:
        ReplicaMismatchError: Number, shapes, dtypes or sparsity of gradients differ. Every rank
            raises this error.
        ReplicaLostError: A rank did not answer.
    """
    pairs = list(pairs)
    if ranks.is_alone:
        return pairs
    return sum_matched_pairs(match_kinds(pairs, ranks), Sender(ranks, sending or Sending()), {})


@no_grad()
def sum_matched_pairs(
    pairs: Sequence[MaybePair], sender: Sender, early_sums: Mapping[int, Tensor]
) -> list[MaybePair]:
    """Return new (gradient sum, variable) pairs over all ranks, in order.

    A dense sum is a view of a buffer of `sender`. A sparse sum has the rows of all ranks. None
    stays None. The caller makes sure that sparsity and dtypes are equal on all ranks.

    Args:
        pairs: (gradient, variable) pairs.
        sender: Sends the dense gradients. If `sender.scatters`, a dense sum is only this rank's
            part.
        early_sums: {index of a pair: dense sum}; these gradients are not sent again.
    """
    gradients: list[Any] = [grad for grad, _ in pairs]
    variables = [var for _, var in pairs]
    dense = [
        (index, grad)
        for index, grad in enumerate(gradients)
        if isinstance(grad, Tensor) and index not in early_sums
    ]
    buckets: Sequence[Bucket] = sender.buckets_for(dense, variables) if dense else []
    for bucket in buckets:
        bucket.put(bucket.indices, [gradients[index] for index in bucket.indices])
        sender.send_bucket(bucket, variables)
    # The buckets are in flight while this rank waits for the rows.
    sparse = [index for index, grad in enumerate(gradients) if isinstance(grad, IndexedSlices)]
    rows = gather_rows([gradients[index] for index in sparse], sender.ranks)
    for index, slices in zip(sparse, rows, strict=True):
        gradients[index] = slices
    for sums in (early_sums, *(bucket.wait_for_sums() for bucket in buckets)):
        for index, grad_sum in sums.items():
            gradients[index] = grad_sum
    return list(zip(gradients, variables, strict=True))


def gather_rows(slices: Sequence[IndexedSlices], ranks: Ranks) -> list[IndexedSlices]:
    """Return new sparse gradients, each with the rows of all ranks, in the order of ranks.

    Rows of equal index are not added. Ranks may have different numbers of rows. All ranks must call
    this function, with equal numbers of gradients; this is not checked.
    """
    if not slices:
        return []
    row_counts = [len(grad.indices) for grad in slices]
    local_counts = torch.tensor(row_counts, dtype=torch.int64, device=slices[0].device)
    counts_by_rank = torch.stack(ranks.all_gather(local_counts), 1)
    counts = cast("list[list[int]]", counts_by_rank.tolist())
    return [
        IndexedSlices(
            _gather_padded(grad.values, count, ranks),
            _gather_padded(grad.indices, count, ranks),
            grad.dense_shape,
        )
        for grad, count in zip(slices, counts, strict=True)
    ]


def _gather_padded(local_rows: Tensor, counts: Sequence[int], ranks: Ranks) -> Tensor:
    """Return the rows of all ranks, concatenated; rank r has `counts[r]` rows."""
    # Collectives need one shape on all ranks.
    padded = local_rows.new_zeros((max(counts), *local_rows.shape[1:]))
    if not padded.numel():
        return local_rows.new_zeros((sum(counts), *local_rows.shape[1:]))
    padded[: len(local_rows)] = local_rows
    padded_rows = ranks.all_gather(padded)
    return torch.cat([rows[:count] for rows, count in zip(padded_rows, counts, strict=True)])

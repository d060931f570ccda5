"""Gradients of all ranks, added up.

Every rank issues the same collectives in the same order, whatever gradients it has: the ranks first
tell one another which variables have a gradient, and of which kind. Nothing is written to before
all of it has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg.distribute.bucketed_all_reduce import Sender
from thalweg.distribute.buckets import Sending
from thalweg.distribute.consistency_check import hash_bytes
from thalweg.distribute.gather_sparse import gather_rows
from thalweg.distribute.gradient_kinds import GradientKind, kind_of
from thalweg.distribute.handshake import PendingCollective, RankMessage, compare_lines
from thalweg.distribute.process_group import Ranks
from thalweg.indexed_slices import Gradient, IndexedSlices
from thalweg.variable import titles_of

MaybePair = tuple[Gradient, Any]


def fill_missing(pairs: Iterable[Any], ranks: Ranks) -> list[Any]:
    """Return the pairs with zeros, or no rows, for each None that is a gradient on another rank.

    All ranks give as many. While a graph is built, gradients and variables may be symbolic; see
    `sum_pairs`.
    """
    pairs = list(pairs)
    if not pairs or ranks.is_alone:
        return pairs
    own = [GradientKind.of(grad, var).to_marks() for grad, var in pairs]
    marks = torch.tensor(own, dtype=torch.uint8, device=ranks.device)
    ranks.take_maximum(marks)
    kinds = [GradientKind.from_marks(row) for row in marks.tolist()]
    for kind, title in zip(kinds, _names_of(pairs), strict=True):
        kind.check_same(title)
    return [(kind.fill(grad, var), var) for kind, (grad, var) in zip(kinds, pairs, strict=True)]


def match_kinds(pairs: Sequence[MaybePair], ranks: Ranks) -> list[MaybePair]:
    """Return the pairs, of one kind on all ranks: `fill_missing`, after a look at numbers and
    shapes.
    """
    own = [None if value is None else (kind_of(value), _shape_of(value)) for value, _ in pairs]
    if (
        RankMessage(ranks, PendingCollective.VALUES, [hash_bytes(repr(own).encode())])
        .receive()
        .alike[0]
    ):
        return list(pairs)
    compare_lines(ranks, [f"the number of values: {len(pairs)}"])
    whole, titles = fill_missing(pairs, ranks), _names_of(pairs)
    shapes = ["None" if value is None else str(_shape_of(value)) for value, _ in whole]
    compare_lines(ranks, [f"the shape of {one}: {shape}" for one, shape in zip(titles, shapes)])
    return whole


def _shape_of(value: Tensor | IndexedSlices) -> tuple[int, ...]:
    """That of a value, of slices that of a row."""
    return tuple(value.values.shape[1:] if isinstance(value, IndexedSlices) else value.shape)


def _names_of(pairs: Sequence[Any]) -> list[str]:
    variables = [var for _, var in pairs]
    if any(var is None for var in variables):
        return [f"value {place}" for place in range(len(variables))]
    return [f"the gradient of '{title}'" for title in titles_of(variables)]


def sum_pairs(
    pairs: Iterable[MaybePair], ranks: Ranks, sending: Sending | None = None
) -> list[MaybePair]:
    """Return the pairs with each gradient summed over the ranks; every rank gives the same
    variables.

    None counts as zero where another rank has a gradient, and stays None where none has. Rows of
    sparse gradients are brought together, not added up: a row that two ranks name is named twice.
    Their indices are int64 if they are so on any rank.

    Args:
        pairs: Gradients, which are not written to, and their variables; or values that belong to
            no variable, and None.
        ranks: The ranks.
        sending: How.

    Raises:
        ReplicaMismatchError: The ranks give other shapes, or as many; a gradient is dense on one
            rank and sparse on another, or its dtypes differ. Every rank raises it.
        ReplicaLostError: A rank did not answer.
    """
    pairs = list(pairs)
    if ranks.is_alone:
        return pairs
    return sum_matched_pairs(match_kinds(pairs, ranks), Sender(ranks, sending or Sending()), {})


@no_grad()
def sum_matched_pairs(
    pairs: Sequence[MaybePair], sender: Sender, known: Mapping[int, Tensor]
) -> list[MaybePair]:
    """Return the sums of gradients that are of one kind on all ranks.

    Args:
        pairs: As in `sum_pairs`.
        sender: What sends them; what comes back of dense ones is the sums, or parts of them.
        known: Sums of dense gradients that are there already, by their numbers.
    """
    found: list[Any] = [grad for grad, _ in pairs]
    variables = [var for _, var in pairs]
    dense = [
        (place, grad)
        for place, grad in enumerate(found)
        if isinstance(grad, Tensor) and place not in known
    ]
    buckets = sender.buckets_for(dense, variables) if dense else []
    for bucket in buckets:
        bucket.put(bucket.places, [found[place] for place in bucket.places])
        sender.send_bucket(bucket, variables)
    sparse = [place for place, grad in enumerate(found) if isinstance(grad, IndexedSlices)]
    rows = gather_rows([found[place] for place in sparse], sender.ranks)
    for place, slices in zip(sparse, rows, strict=True):
        found[place] = slices
    for sums in (known, *(bucket.wait_for_sums() for bucket in buckets)):
        for place, part in sums.items():
            found[place] = part
    return list(zip(found, variables, strict=True))

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

from thalweg.distribute.buckets import Sending
from thalweg.distribute.kinds import Kind
from thalweg.distribute.ranks import Ranks
from thalweg.distribute.rows import gathered
from thalweg.distribute.sender import Sender
from thalweg.indexed_slices import Gradient, IndexedSlices
from thalweg.variable import titles_of

MaybePair = tuple[Gradient, Any]


def filled(pairs: Iterable[Any], ranks: Ranks) -> list[Any]:
    """The pairs with zeros, or no rows, for each None that is a gradient on another rank.

    While a graph is built, gradients and variables may be symbolic; see `summed`.
    """
    pairs = list(pairs)
    if not pairs or ranks.is_alone:
        return pairs
    own = [Kind.of(grad, var).marks() for grad, var in pairs]
    marks = torch.tensor(own, dtype=torch.uint8, device=ranks.device)
    ranks.maximum(marks)
    kinds = [Kind.read(row) for row in marks.tolist()]
    for kind, title in zip(kinds, _titles(pairs), strict=True):
        kind.check(title)
    return [(kind.filled(grad, var), var) for kind, (grad, var) in zip(kinds, pairs, strict=True)]


def _titles(pairs: Sequence[Any]) -> list[str]:
    variables = [var for _, var in pairs]
    if any(var is None for var in variables):
        return [f"Value {place}" for place in range(len(variables))]
    return [f"The gradient of '{title}'" for title in titles_of(variables)]


def summed(
    pairs: Iterable[MaybePair], ranks: Ranks, sending: Sending | None = None
) -> list[MaybePair]:
    """The pairs with each gradient summed over the ranks; every rank gives the same variables.

    None counts as zero where another rank has a gradient, and stays None where none has. Rows of
    sparse gradients are brought together, not added up: a row that two ranks name is named twice.
    Their indices are int64 if they are so on any rank.

    Args:
        pairs: Gradients, which are not written to, and their variables; or values that belong to
            no variable, and None.
        ranks: The ranks.
        sending: How.

    Raises:
        ReplicaMismatchError: A gradient is dense on one rank and sparse on another, or its dtypes
            differ. Every rank raises it.
        ReplicaLostError: A rank did not answer.
    """
    whole = filled(pairs, ranks)
    return whole if ranks.is_alone else sums_of(whole, Sender(ranks, sending or Sending()), {})


@torch.no_grad()
def sums_of(
    pairs: Sequence[MaybePair], sender: Sender, known: Mapping[int, Tensor]
) -> list[MaybePair]:
    """The sums of gradients that are of one kind on all ranks.

    Args:
        pairs: As in `summed`.
        sender: What sends them.
        known: Sums of dense gradients that are there already, by their numbers.
    """
    found: list[Any] = [grad for grad, _ in pairs]
    variables = [var for _, var in pairs]
    dense = [
        (place, grad)
        for place, grad in enumerate(found)
        if isinstance(grad, Tensor) and place not in known
    ]
    buckets = sender.buckets(dense) if dense else []
    for bucket in buckets:
        given = [found[place] for place in bucket.places]
        torch._foreach_copy_(bucket.parts, given)  # pyright: ignore[reportPrivateImportUsage]
        sender.send(bucket, variables)
    sparse = [place for place, grad in enumerate(found) if isinstance(grad, IndexedSlices)]
    rows = gathered([found[place] for place in sparse], sender.ranks)
    for place, slices in zip(sparse, rows, strict=True):
        found[place] = slices
    for sums in (known, *(bucket.sums() for bucket in buckets)):
        for place, part in sums.items():
            found[place] = part
    return list(zip(found, variables, strict=True))

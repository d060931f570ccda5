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

from thalweg.distribute.agreement import hashed
from thalweg.distribute.buckets import Sending
from thalweg.distribute.kinds import Kind, kind_of
from thalweg.distribute.message import Doing, Message, compare
from thalweg.distribute.ranks import Ranks
from thalweg.distribute.rows import gathered
from thalweg.distribute.sender import Sender
from thalweg.ground.switches import no_grad
from thalweg.indexed_slices import Gradient, IndexedSlices
from thalweg.variable import titles_of

MaybePair = tuple[Gradient, Any]


def filled(pairs: Iterable[Any], ranks: Ranks) -> list[Any]:
    """The pairs with zeros, or no rows, for each None that is a gradient on another rank.

    All ranks give as many. While a graph is built, gradients and variables may be symbolic; see
    `summed`.
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


def completed(pairs: Sequence[MaybePair], ranks: Ranks) -> list[MaybePair]:
    """The pairs, of one kind on all ranks: `filled`, after a look at numbers and shapes."""
    own = [None if value is None else (kind_of(value), _shape(value)) for value, _ in pairs]
    if Message(ranks, Doing.VALUES, [hashed(repr(own).encode())]).heard().alike[0]:
        return list(pairs)
    compare(ranks, [f"the number of values: {len(pairs)}"])
    whole, titles = filled(pairs, ranks), _titles(pairs)
    shapes = ["None" if value is None else str(_shape(value)) for value, _ in whole]
    compare(ranks, [f"the shape of {one}: {shape}" for one, shape in zip(titles, shapes)])
    return whole


def _shape(value: Tensor | IndexedSlices) -> tuple[int, ...]:
    """That of a value, of slices that of a row."""
    return tuple(value.values.shape[1:] if isinstance(value, IndexedSlices) else value.shape)


def _titles(pairs: Sequence[Any]) -> list[str]:
    variables = [var for _, var in pairs]
    if any(var is None for var in variables):
        return [f"value {place}" for place in range(len(variables))]
    return [f"the gradient of '{title}'" for title in titles_of(variables)]


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
        ReplicaMismatchError: The ranks give other shapes, or as many; a gradient is dense on one
            rank and sparse on another, or its dtypes differ. Every rank raises it.
        ReplicaLostError: A rank did not answer.
    """
    pairs = list(pairs)
    if ranks.is_alone:
        return pairs
    return sums_of(completed(pairs, ranks), Sender(ranks, sending or Sending()), {})


@no_grad()
def sums_of(
    pairs: Sequence[MaybePair], sender: Sender, known: Mapping[int, Tensor]
) -> list[MaybePair]:
    """The sums of gradients that are of one kind on all ranks.

    Args:
        pairs: As in `summed`.
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
    buckets = sender.buckets(dense, variables) if dense else []
    for bucket in buckets:
        bucket.put(bucket.places, [found[place] for place in bucket.places])
        sender.send(bucket, variables)
    sparse = [place for place, grad in enumerate(found) if isinstance(grad, IndexedSlices)]
    rows = gathered([found[place] for place in sparse], sender.ranks)
    for place, slices in zip(sparse, rows, strict=True):
        found[place] = slices
    for sums in (known, *(bucket.sums() for bucket in buckets)):
        for place, part in sums.items():
            found[place] = part
    return list(zip(found, variables, strict=True))

"""Gradients of all ranks, added up.

Every rank issues the same collectives in the same order, whatever gradients it has: the ranks first
tell one another which variables have a gradient, and of which kind. Nothing is written to before
all of it has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.distribute.agreement import Agreement
from thalweg.distribute.buckets import Bucket, planned
from thalweg.distribute.kinds import Kind
from thalweg.distribute.ranks import Ranks
from thalweg.distribute.rows import gathered
from thalweg.indexed_slices import Gradient, IndexedSlices
from thalweg.variable import titles_of

BUCKET = 25 * 2**20  # bytes, as in torch's DistributedDataParallel


@dataclass(frozen=True)
class Sending:
    """How gradients are sent.

    Attributes:
        bucket_size: Bytes that are sent together.
        ordered: Whether they are added in the order of a tree over the ranks.
    """

    bucket_size: int = BUCKET
    ordered: bool = False


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
    if ranks.is_alone:
        return whole
    with torch.no_grad():
        sums = _sums([grad for grad, _ in whole], ranks, sending or Sending())
    return [(grad, var) for grad, (_, var) in zip(sums, whole, strict=True)]


def _sums(gradients: Sequence[Gradient], ranks: Ranks, how: Sending) -> list[Gradient]:
    found = list(gradients)
    dense = [place for place, grad in enumerate(found) if isinstance(grad, Tensor)]
    groups = planned([found[place] for place in dense], how.bucket_size)  # pyright: ignore
    buckets: list[tuple[list[int], Bucket]] = []
    for group in groups:
        places = [dense[index] for index in group]
        bucket = Bucket([found[place] for place in places])  # pyright: ignore
        bucket.send(ranks, how.ordered)
        buckets.append((places, bucket))
    sparse = [place for place, grad in enumerate(found) if isinstance(grad, IndexedSlices)]
    rows = gathered([found[place] for place in sparse], ranks)  # pyright: ignore
    for place, slices in zip(sparse, rows, strict=True):
        found[place] = slices
    for places, bucket in buckets:
        for place, part in zip(places, bucket.received(), strict=True):
            found[place] = part
    return found


class Reducer:
    """What one optimizer sends its gradients through.

    Args:
        ranks: The ranks.
        sending: How.
    """

    def __init__(self, ranks: Ranks, sending: Sending) -> None:
        self._ranks, self._sending = ranks, sending
        self._agreement = Agreement(ranks)

    def summed(
        self,
        gradients: Callable[[], Sequence[MaybePair]],
        variables: Sequence[Tensor],
        told: Callable[[], Sequence[str]],
    ) -> list[MaybePair]:
        """As `summed`, after the ranks have compared what they are about to do.

        Args:
            gradients: Gives the pairs; what it raises is told to the other ranks.
            variables: Those of the pairs, or anything if `gradients` raises.
            told: What must be the same on all ranks, in words, one thing a line.
        """
        pairs: Sequence[MaybePair] = ()
        trouble: Exception | None = None
        try:
            pairs = gradients()
        except Exception as error:
            trouble = error
        self._agreement.check([] if trouble is not None else variables, told, trouble)
        return summed(pairs, self._ranks, self._sending)

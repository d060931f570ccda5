"""What becomes of the elements of a dataset, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from thalweg.errors import InvalidArgumentError
from thalweg.graph.nest import leaves_of, packed


def checked(title: str, number: Any) -> int:
    """A size of at least 1.

    Raises:
        InvalidArgumentError: It is less.
    """
    size = int(number)
    if size < 1:
        raise InvalidArgumentError(f"{title} must be greater than zero, not {size}.")
    return size


def batches(every: Iterator[Any], size: int, drop_remainder: bool) -> Iterator[Any]:
    """So many elements stacked at a time."""
    while chunk := list(itertools.islice(every, size)):
        if len(chunk) == size or not drop_remainder:
            columns = zip(*map(leaves_of, chunk), strict=True)
            yield packed(chunk[0], map(_stacked, columns))


def _stacked(rows: Sequence[Any]) -> Any:
    shapes = sorted({tuple(row.shape) for row in rows})
    if len(shapes) > 1:
        raise InvalidArgumentError(f"batch takes tensors of one shape, not of shapes {shapes}.")
    return torch.stack(list(rows))


def shuffled(every: Iterator[Any], size: int, generator: torch.Generator) -> Iterator[Any]:
    """The next is always one of the first `size` elements that are left."""
    held = list(itertools.islice(every, size))
    while held:
        place = int(torch.randint(len(held), (), generator=generator))
        yield held[place]
        following = next(every, None)
        if following is None:
            held[place] = held[-1]
            held.pop()
        else:
            held[place] = following

"""Tensors that are sent together: one long message is faster than many short ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from thalweg.distribute import tree
from thalweg.distribute.ranks import Pending, Ranks

SIZE = 25 * 2**20  # bytes, as in torch's DistributedDataParallel


@dataclass(frozen=True)
class Sending:
    """How gradients are sent.

    Attributes:
        bucket_size: Bytes that are sent together.
        ordered: Whether they are added in the order of a tree over the ranks.
    """

    bucket_size: int = SIZE
    ordered: bool = False


class Sent(Protocol):
    """Tensors that are sent together, and come back as sums.

    Attributes:
        places: Their numbers.
    """

    places: list[int]

    def put(self, places: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Copy tensors to where they are sent from."""
        ...

    def clear(self, place: int) -> None:
        """Have zeros sent for a tensor."""
        ...

    def send(self, ranks: Ranks, ordered: bool) -> None:
        """Begin to add up what all ranks have in it."""
        ...

    def sums(self) -> dict[int, Tensor]:
        """The sums by the numbers of the tensors; waits for them."""
        ...


Made = TypeVar("Made")


class Bucket:
    """Memory for copies of some tensors, one after the other, on their way to all ranks.

    Args:
        places: Numbers of the tensors.
        like: Tensors of their shapes, of one dtype and on one device.
    """

    def __init__(self, places: Sequence[int], like: Sequence[Tensor]) -> None:
        self.places = list(places)
        plain = [_real(each) for each in like]
        self._flat = plain[0].new_empty(sum(each.numel() for each in plain))
        parts = self._flat.split([each.numel() for each in plain])
        views = [part.view(each.shape) for part, each in zip(parts, plain, strict=True)]
        self._parts = {
            place: torch.view_as_complex(view) if each.is_complex() else view
            for place, view, each in zip(places, views, like, strict=True)
        }
        self._sent: Pending | None = None

    def put(self, places: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """See `Sent`."""
        copied_to([self._parts[place] for place in places], tensors)

    def clear(self, place: int) -> None:
        """See `Sent`."""
        self._parts[place].zero_()

    def send(self, ranks: Ranks, ordered: bool) -> None:
        """See `Sent`."""
        if ordered:
            self._flat.copy_(tree.over_ranks(self._flat, ranks))
        else:
            self._sent = ranks.begin_adding(self._flat)

    def sums(self) -> dict[int, Tensor]:
        """See `Sent`; they have the shapes of the tensors."""
        if self._sent is not None:
            self._sent.wait()
        return self._parts


def planned(
    like: Sequence[tuple[int, Tensor]],
    size: int,
    made: Callable[[Sequence[int], Sequence[Tensor]], Made],
) -> list[Made]:
    """Buckets for tensors: those of one dtype and device go together, in order.

    Args:
        like: Numbers, and tensors of the same shapes and dtypes on all ranks, so that all plan
            alike.
        size: Bytes after which a bucket is full; a larger tensor has one of its own.
        made: Makes a bucket; see `Bucket`.
    """
    full: list[list[tuple[int, Tensor]]] = []
    filling: dict[tuple[torch.dtype, torch.device], tuple[list[tuple[int, Tensor]], int]] = {}
    for place, each in like:
        kind, more = (each.dtype, each.device), each.numel() * each.element_size()
        members, bytes_ = filling.get(kind, ([], 0))
        if members and bytes_ + more > size:
            full.append(members)
            members, bytes_ = [], 0
        filling[kind] = ([*members, (place, each)], bytes_ + more)
    full += [members for members, _ in filling.values()]
    return [made([place for place, _ in each], [like for _, like in each]) for each in full]


def copied_to(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors to others of their shapes."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


def _real(tensor: Tensor) -> Tensor:
    """A tensor that is sent: torch's collectives know no complex numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor

"""Tensors that are sent together: one long message is faster than many short ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from thalweg.distribute import tree
from thalweg.distribute.ranks import Pending, Ranks


def planned(tensors: Sequence[Tensor], size: int) -> list[list[int]]:
    """Which tensors go together, by their places: those of one dtype and device, in order.

    Args:
        tensors: Of the same shapes and dtypes on all ranks, so that all plan alike.
        size: Bytes after which a bucket is full; a larger tensor has one of its own.
    """
    full: list[list[int]] = []
    open_: dict[tuple[torch.dtype, torch.device], tuple[list[int], int]] = {}
    for place, each in enumerate(tensors):
        kind, more = (each.dtype, each.device), each.numel() * each.element_size()
        places, bytes_ = open_.get(kind, ([], 0))
        if places and bytes_ + more > size:
            full.append(places)
            places, bytes_ = [], 0
        open_[kind] = ([*places, place], bytes_ + more)
    return full + [places for places, _ in open_.values()]


class Bucket:
    """Copies of some tensors, one after the other in memory, on their way to all ranks.

    Args:
        tensors: What goes into it.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._like = list(tensors)
        self._flat = torch.cat([_real(each).reshape(-1) for each in tensors])
        self._sent: Pending | None = None

    def send(self, ranks: Ranks, ordered: bool) -> None:
        """Begin to add up what all ranks have in it; do so where the order is that of a tree."""
        if ordered:
            self._flat = tree.over_ranks(self._flat, ranks)
        else:
            self._sent = ranks.begin_adding(self._flat)

    def received(self) -> Iterable[Tensor]:
        """The sums, as parts of the bucket; waits for them."""
        if self._sent is not None:
            self._sent.wait()
        parts = self._flat.split([_real(each).numel() for each in self._like])
        for part, each in zip(parts, self._like, strict=True):
            plain = part.view(_real(each).shape)
            yield torch.view_as_complex(plain) if each.is_complex() else plain


def _real(tensor: Tensor) -> Tensor:
    """A tensor that is sent: torch's collectives know no complex numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor

"""Tensors that are sent together: one long message is faster than many short ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


class Bucket:
    """Memory for copies of some tensors, one after the other, on their way to all ranks.

    Args:
        places: Numbers of the tensors.
        like: Tensors of their shapes, of one dtype and on one device.
    """

    def __init__(self, places: Sequence[int], like: Sequence[Tensor]) -> None:
        self.places = list(places)
        plain = [_real(each) for each in like]
        with torch.inference_mode(False):  # it may be filled again outside of it
            self._flat = plain[0].new_empty(sum(each.numel() for each in plain))
        parts = self._flat.split([each.numel() for each in plain])
        views = [part.view(each.shape) for part, each in zip(parts, plain, strict=True)]
        self.parts = [
            torch.view_as_complex(view) if each.is_complex() else view
            for view, each in zip(views, like, strict=True)
        ]
        self._sent: Pending | None = None

    def send(self, ranks: Ranks, ordered: bool) -> None:
        """Begin to add up what all ranks have in it."""
        if ordered:
            self._flat.copy_(tree.over_ranks(self._flat, ranks))
        else:
            self._sent = ranks.begin_adding(self._flat)

    def wait(self) -> None:
        """Return when nothing of it is under way any more."""
        if self._sent is not None:
            self._sent.wait()
            self._sent = None

    def sums(self) -> dict[int, Tensor]:
        """The sums, which lie in it, by their numbers; waits for them."""
        self.wait()
        # Each time new tensors: `holders` sees those that somebody keeps.
        pairs = zip(self.places, self.parts, strict=True)
        return {place: part.detach() for place, part in pairs}

    def holders(self) -> int:
        """How many tensors lie in its memory: more than at first if somebody keeps a sum."""
        storage = self._flat.untyped_storage()
        return torch._C._storage_Use_Count(storage._cdata)  # pyright: ignore


def planned(like: Sequence[tuple[int, Tensor]], size: int) -> list[Bucket]:
    """Buckets for tensors: those of one dtype and device go together, in order.

    Args:
        like: Numbers, and tensors of the same shapes and dtypes on all ranks, so that all plan
            alike.
        size: Bytes after which a bucket is full; a larger tensor has one of its own.
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
    return [Bucket([place for place, _ in each], [like for _, like in each]) for each in full]


def _real(tensor: Tensor) -> Tensor:
    """A tensor that is sent: torch's collectives know no complex numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor

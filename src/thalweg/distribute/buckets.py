"""Tensors that are sent together: one long message is faster than many short ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from thalweg._base.context_managers import outside_inference
from thalweg._base.storage_use_count import count_holders
from thalweg.distribute.process_group import Pending, Ranks
from thalweg.distribute.tree_reduction import over_ranks

SIZE = 25 * 2**20  # bytes, as in torch's DistributedDataParallel


@dataclass
class Sending:
    """Settings of the sending of gradients.

    Attributes:
        bucket_size: Bytes that are sent together.
        ordered: Whether gradients are added in the order of a tree over the ranks.
        compression: The dtype that optimizers send in place of 32 and 64 bits; None for those.
        micro_batches: The number of micro-batches of all ranks, from the last call of
            `Strategy.gradients`, if it was given.
    """

    bucket_size: int = SIZE
    ordered: bool = False
    compression: torch.dtype | None = None
    micro_batches: int | None = None

    def describe(self) -> list[str]:
        """Return a line for each setting, and for all else that the bits of ordered sums depend
        on.
        """
        names = [each.name for each in fields(self) if self.ordered or each.name != "micro_batches"]
        lines = [f"{name} of the strategy: {getattr(self, name)}" for name in names]
        return [*lines, f"threads of torch: {torch.get_num_threads()}"] if self.ordered else lines


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
        """Send zeros for a tensor."""
        ...

    def send(self, ranks: Ranks, ordered: bool) -> None:
        """Begin to add up what all ranks have in it."""
        ...

    def wait(self) -> None:
        """Wait until nothing of it is under way."""
        ...

    def wait_for_sums(self) -> dict[int, Tensor]:
        """Return the sums by the numbers of the tensors; waits for them."""
        ...

    def count_holders(self) -> int:
        """Return the number of tensors in its memory; it has risen if the caller keeps a sum."""
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
        plain = [_as_real(each) for each in like]
        with outside_inference():  # it may be filled again outside of it
            self._flat = plain[0].new_empty(sum(each.numel() for each in plain))
        parts = self._flat.split([each.numel() for each in plain])
        views = [part.view(each.shape) for part, each in zip(parts, plain, strict=True)]
        self.parts = {
            place: torch.view_as_complex(view) if each.is_complex() else view
            for place, view, each in zip(places, views, like, strict=True)
        }
        self.dtype = like[0].dtype
        self._narrow: Tensor | None = None  # what is sent in place of it,
        self._divisor = 1  # divided by that
        self._sent: Pending | None = None

    def put(self, places: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """See `Sent`."""
        copy_all([self.parts[place] for place in places], tensors)

    def clear(self, place: int) -> None:
        """See `Sent`."""
        self.parts[place].zero_()

    def compress(self, dtype: torch.dtype, count: int) -> list[Tensor]:
        """Send numbers of 16 bits in place of those in it.

        They are divided by the number of ranks, so that their sum is no larger than the largest.
        What is not finite, or too large, is infinite or NaN in the sum, too.

        Args:
            dtype: The dtype of 16 bits.
            count: The number of ranks.

        Returns:
            For each tensor what that leaves out; 0 where it is not finite.
        """
        if self._narrow is None:
            with outside_inference():
                self._narrow = torch.empty_like(self._flat, dtype=dtype)
        self._divisor = count
        left = self._flat / count
        left.copy_(self._narrow.copy_(left))
        torch.sub(self._flat, left, alpha=count, out=left).nan_to_num_(0.0, 0.0, 0.0)
        sizes = [part.numel() for part in self.parts.values()]
        shapes = [part.shape for part in self.parts.values()]
        return [each.view(shape) for each, shape in zip(left.split(sizes), shapes, strict=True)]

    def send(self, ranks: Ranks, ordered: bool) -> None:
        """See `Sent`."""
        if ordered:
            self._flat.copy_(over_ranks(self._flat, ranks))
        else:
            sent = self._flat if self._narrow is None else self._narrow
            self._sent = ranks.begin_adding(sent)

    def wait(self) -> None:
        """See `Sent`."""
        if self._sent is not None:
            self._sent.wait()
            self._sent = None
            if self._narrow is not None:
                self._flat.copy_(self._narrow).mul_(self._divisor)

    def wait_for_sums(self) -> dict[int, Tensor]:
        """See `Sent`; they have the shapes of the tensors, and lie in it."""
        self.wait()
        # Each time new tensors: `count_holders` sees those that somebody keeps.
        return {place: part.detach() for place, part in self.parts.items()}

    def count_holders(self) -> int:
        """See `Sent`."""
        return holders_of(self._flat)


def holders_of(tensor: Tensor) -> int:
    """Return the number of tensors in the memory of a tensor."""
    return count_holders(tensor.untyped_storage())


def plan_buckets(
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


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors to others of their shapes."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


def _as_real(tensor: Tensor) -> Tensor:
    """A tensor that is sent: torch's collectives know no complex numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor

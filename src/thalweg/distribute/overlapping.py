"""Gradients that are sent while the backward pass still computes others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from thalweg.distribute.buckets import Bucket, Sending, Sent, planned
from thalweg.distribute.ranks import Ranks
from thalweg.indexed_slices import Gradient


class Underway:
    """The gradients of one backward pass, bucket by bucket in one order on all ranks.

    The last variables' gradients come first, so their bucket is the first. A gradient that does not
    come, or comes as rows, counts as zeros.

    Args:
        variables: All of the pass.
        dense: The numbers of those that had a dense gradient before, the same on all ranks.
        ranks: The ranks.
        sending: How.
        made: Makes a bucket.
    """

    def __init__(
        self,
        variables: Sequence[Tensor],
        dense: Sequence[int],
        ranks: Ranks,
        sending: Sending,
        made: Callable[[Sequence[int], Sequence[Tensor]], Sent] = Bucket,
    ) -> None:
        self._variables, self._ranks, self._sending = list(variables), ranks, sending
        like = [(place, variables[place].detach()) for place in sorted(dense, reverse=True)]
        self._buckets = planned(like, sending.bucket_size, made)
        self._homes = {place: bucket for bucket in self._buckets for place in bucket.places}
        self._numbers = {id(var): place for place, var in enumerate(variables)}
        self._left = {id(bucket): len(bucket.places) for bucket in self._buckets}
        self._arrived: dict[int, Tensor] = {}
        self._sent = 0

    def arrived(self, var: Tensor) -> None:
        """Take the gradient of a variable, `var.grad`, which is complete."""
        place, grad = self._numbers.get(id(var), -1), var.grad
        home = self._homes.get(place)
        if home is None or grad is None or not _is_dense(grad, var) or place in self._arrived:
            return
        home.put([place], [grad])
        self._arrived[place] = grad
        self._left[id(home)] -= 1
        while self._sent < len(self._buckets) and not self._left[id(self._buckets[self._sent])]:
            self._send()

    def finish(self) -> None:
        """Send what is left; what did not come is zeros."""
        for place, bucket in self._homes.items():
            if place not in self._arrived:
                bucket.clear(place)
        while self._sent < len(self._buckets):
            self._send()

    def carries(self, variables: Sequence[Tensor], gradients: Sequence[Gradient]) -> bool:
        """Whether these are the gradients that it was given, and those that it left out."""
        return len(variables) == len(self._variables) and all(
            var is own and (place not in self._homes or grad is self._arrived.get(place))
            for place, (var, own, grad) in enumerate(
                zip(variables, self._variables, gradients, strict=True)
            )
        )

    def sums(self) -> dict[int, Tensor]:
        """The sums by the numbers of their variables; waits for them."""
        return {place: sum_ for each in self._buckets for place, sum_ in each.sums().items()}

    def _send(self) -> None:
        self._buckets[self._sent].send(self._ranks, self._sending.ordered)
        self._sent += 1


def _is_dense(grad: Tensor, var: Tensor) -> bool:
    return grad.layout is torch.strided and grad.dtype == var.dtype

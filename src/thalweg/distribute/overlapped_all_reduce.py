"""Gradients that are sent while the backward pass still computes others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thalweg.distribute.bucketed_all_reduce import Sender
from thalweg.distribute.consistency_check import Meeting
from thalweg.indexed_slices import Gradient


class InFlightAllReduce:
    """The gradients of one backward pass, bucket by bucket in one order on all ranks.

    The last variables' gradients come first, so their bucket is the first. A gradient that does not
    come, or comes as rows, counts as zeros.

    Args:
        variables: All of the pass.
        dense: The numbers of those that had a dense gradient before, the same on all ranks.
        sender: What sends them.
        meeting: Whether all ranks send; nothing is sent before that is known.
    """

    def __init__(
        self,
        variables: Sequence[Tensor],
        dense: Sequence[int],
        sender: Sender,
        meeting: Meeting,
    ) -> None:
        self._variables, self._sender, self._meeting = list(variables), sender, meeting
        like = [(place, variables[place].detach()) for place in dense]
        self._buckets = sender.buckets_for(like, self._variables)
        self._homes = {place: bucket for bucket in self._buckets for place in bucket.places}
        self._numbers = {id(var): place for place, var in enumerate(variables)}
        self._left = {id(bucket): len(bucket.places) for bucket in self._buckets}
        self._arrived: dict[int, tuple[Tensor, int]] = {}  # with their versions as they were sent
        self._sent = 0

    def take_gradient(self, var: Tensor) -> None:
        """Take the gradient of a variable, `var.grad`, which is complete."""
        place, grad = self._numbers.get(id(var), -1), var.grad
        home = self._homes.get(place)
        if home is None or grad is None or not _is_dense(grad, var) or place in self._arrived:
            return
        home.put([place], [grad])
        self._arrived[place] = grad, grad._version
        self._left[id(home)] -= 1
        while self._sent < len(self._buckets) and not self._left[id(self._buckets[self._sent])]:
            if not self._is_agreed():
                return
            self._send_next()

    def finish_sending(self) -> bool:
        """Send what is left; what did not come is zeros. Returns whether all ranks do."""
        if not self._is_agreed():
            return False
        for place, bucket in self._homes.items():
            if place not in self._arrived:
                bucket.clear(place)
        while self._sent < len(self._buckets):
            self._send_next()
        return True

    def carries(self, variables: Sequence[Tensor], gradients: Sequence[Gradient]) -> bool:
        """Return True if the gradients under way are these, as far as they are dense and were
        expected.
        """
        return len(variables) == len(self._variables) and all(
            var is own and self._has_sent(place, grad)
            for place, (var, own, grad) in enumerate(
                zip(variables, self._variables, gradients, strict=True)
            )
        )

    def _has_sent(self, place: int, grad: Gradient) -> bool:
        if place not in self._homes:
            return True
        if place not in self._arrived:
            return not isinstance(grad, Tensor)  # zeros were sent
        sent, version = self._arrived[place]
        return grad is sent and sent._version == version

    def wait_for_sums(self) -> dict[int, Tensor]:
        """Return the sums by the numbers of their variables; waits for them."""
        return {
            place: sum_ for each in self._buckets for place, sum_ in each.wait_for_sums().items()
        }

    def _is_agreed(self) -> bool:
        return self._meeting.reach_agreement()

    def _send_next(self) -> None:
        self._sender.send_bucket(self._buckets[self._sent], self._variables)
        self._sent += 1


def _is_dense(grad: Tensor, var: Tensor) -> bool:
    return grad.layout is torch.strided and grad.dtype == var.dtype

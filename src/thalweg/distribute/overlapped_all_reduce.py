"""All-reduce of gradients that overlaps with the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thalweg.distribute.bucketed_all_reduce import Sender
from thalweg.distribute.consistency_check import Vote
from thalweg.indexed_slices import Gradient


class InFlightAllReduce:
    """All-reduce that sends gradients while the backward pass computes further gradients.

    All ranks send the buckets (buffers of several gradients) in descending order of variables. A
    gradient that is missing or sparse counts as zeros.

    Args:
        variables: All variables of the pass.
        dense: Indices of the variables with a dense gradient in the last step, equal on all ranks.
        sender: Sends the buckets.
        vote: The vote of all ranks on sending during the pass; no bucket is sent before its result.
    """

    def __init__(
        self,
        variables: Sequence[Tensor],
        dense: Sequence[int],
        sender: Sender,
        vote: Vote,
    ) -> None:
        self._variables, self._sender, self._vote = list(variables), sender, vote
        templates = [(index, variables[index].detach()) for index in dense]
        self._buckets = sender.buckets_for(templates, self._variables)
        self._buckets_by_index = {
            index: bucket for bucket in self._buckets for index in bucket.indices
        }
        self._indices = {id(var): index for index, var in enumerate(variables)}
        self._num_missing = {id(bucket): len(bucket.indices) for bucket in self._buckets}
        # Each gradient with its version at the time of sending, to detect later changes.
        self._sent_grads: dict[int, tuple[Tensor, int]] = {}
        self._num_sent = 0

    def take_gradient(self, var: Tensor) -> None:
        """Copy the complete gradient `var.grad` into its bucket, and send the next full buckets.

        Do nothing if the gradient is sparse, is the second gradient of `var`, or differs from `var`
        in dtype, or if `var` has no bucket. Send nothing if a rank has declined the vote.
        """
        index, grad = self._indices.get(id(var), -1), var.grad
        bucket = self._buckets_by_index.get(index)
        if bucket is None or grad is None or index in self._sent_grads:
            return
        if grad.layout is not torch.strided or grad.dtype != var.dtype:
            return
        bucket.put([index], [grad])
        self._sent_grads[index] = grad, grad._version
        self._num_missing[id(bucket)] -= 1
        # Backward passes of ranks may differ in order; their collectives must not.
        while (
            self._num_sent < len(self._buckets)
            and not self._num_missing[id(self._buckets[self._num_sent])]
        ):
            if not self._is_agreed():
                return
            self._send_next()

    def finish_sending(self) -> bool:
        """Send the remaining buckets, with zeros for missing gradients, and return True.

        If the ranks have voted against early sending, send nothing and return False.
        """
        if not self._is_agreed():
            return False
        for index, bucket in self._buckets_by_index.items():
            if index not in self._sent_grads:
                bucket.clear(index)
        while self._num_sent < len(self._buckets):
            self._send_next()
        return True

    def carries(self, variables: Sequence[Tensor], gradients: Sequence[Gradient]) -> bool:
        """Return True if the gradients that this rank has sent are still valid.

        Return False if the variables differ, or if a gradient changed after it was sent. None and
        sparse gradients match zeros.
        """
        return len(variables) == len(self._variables) and all(
            var is expected_var and self._has_sent(index, grad)
            for index, (var, expected_var, grad) in enumerate(
                zip(variables, self._variables, gradients, strict=True)
            )
        )

    def _has_sent(self, index: int, grad: Gradient) -> bool:
        """Return True if a gradient needs no transfer, or has not changed after its transfer."""
        if index not in self._buckets_by_index:
            return True
        if index not in self._sent_grads:
            # Zeros were sent in place of a gradient that is not dense.
            return not isinstance(grad, Tensor)
        sent_grad, version = self._sent_grads[index]
        return grad is sent_grad and sent_grad._version == version

    def wait_for_sums(self) -> dict[int, Tensor]:
        """Wait for the sums; return {index of a variable: sum}."""
        return {
            index: grad_sum
            for bucket in self._buckets
            for index, grad_sum in bucket.wait_for_sums().items()
        }

    def _is_agreed(self) -> bool:
        """Wait for the vote; return True if all ranks send during the backward pass."""
        return self._vote.is_unanimous()

    def _send_next(self) -> None:
        self._sender.send_bucket(self._buckets[self._num_sent], self._variables)
        self._num_sent += 1

"""All-reduce of one optimizer's dense gradients, in buckets (buffers of several tensors)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor

from thalweg.distribute.buckets import Bucket, Compression, Sending, plan_buckets
from thalweg.distribute.consistency_check import Vote
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding.reduce_scatter import Scatter
from thalweg.distribute.sharding.shards import Shards
from thalweg.indexed_slices import Gradient


class Sender:
    """Sender of dense gradients, in buckets that are reused from step to step.

    New buckets are allocated if shapes change, or while a caller holds a sum. A sum is a view of a
    bucket.

    Args:
        ranks: The ranks.
        sending: The settings of the transfer.
        compresses: True to send 16-bit gradients if `sending.compression` is set.
        shards: Optional. The assignment of elements to ranks; each rank then receives only its part
            of a sum.

    Attributes:
        ranks: The ranks.
        compression: The rounding errors of compressed gradients.
    """

    def __init__(
        self, ranks: Ranks, sending: Sending, compresses: bool = False, shards: Shards | None = None
    ) -> None:
        self.ranks, self._sending, self._shards = ranks, sending, shards
        dtype = sending.compression if compresses else None
        self.compression = Compression(dtype, ranks.size)
        self._buckets: list[Bucket] = []
        self._holders: list[int] = []
        self._layout: list[object] | None = None

    @property
    def scatters(self) -> bool:
        """True if each rank gets only its parts of the sums."""
        return self._shards is not None

    def buckets_for(
        self, templates: Sequence[tuple[int, Tensor]], variables: Sequence[Tensor]
    ) -> Sequence[Bucket]:
        """Return buckets for dense gradients, in descending order of the gradients' indices.

        Wait for earlier transfers first. The buckets of the last call are reused if the templates
        have not changed and all earlier sums were freed.

        Args:
            templates: (index of the variable, tensor) pairs, one per gradient. Only shape, dtype
                and device of the tensor matter.
            variables: The variables to which the indices refer.
        """
        # A failed step may have left transfers pending.
        for bucket in self._buckets:
            bucket.wait()
        templates = sorted(templates, key=lambda template: -template[0])
        layout: list[Any] = [
            (index, grad.shape, grad.dtype, grad.device) for index, grad in templates
        ]
        make_bucket = Bucket
        if self._shards is not None:
            make_bucket = partial(Scatter, self._shards, variables)
            # The buckets keep these variables alive, so that an id stays unique.
            bucket_vars = [variables[index] for index, _ in templates]
            layout += [(id(var), self._shards.pieces(var)) for var in bucket_vars]
        # A step must not overwrite a sum that a caller still holds.
        holders = [bucket.count_holders() for bucket in self._buckets]
        if layout != self._layout or self._holders != holders:
            # Free the old buckets before the new ones are allocated.
            self._layout, self._buckets = None, []
            self._buckets = plan_buckets(templates, self._sending.bucket_size, make_bucket)
            self._holders = [bucket.count_holders() for bucket in self._buckets]
            self._layout = layout
        return self._buckets

    def send_bucket(self, bucket: Bucket, variables: Sequence[Tensor]) -> None:
        """Compress a bucket, if enabled, and start its sum over all ranks.

        Args:
            bucket: A bucket filled with gradients; `bucket.indices` are indices of `variables`.
        """
        self.compression.compress(bucket, variables)
        bucket.send(self.ranks, self._sending.ordered)


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

        Skip variables without a bucket. Skip sparse gradients, gradients in another dtype than
        `var`, and second gradients of `var`. Send nothing if a rank has declined the vote.
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
            if not self._vote.is_unanimous():
                return
            self._send_next()

    def finish_sending(self) -> bool:
        """Send the remaining buckets, with zeros for missing gradients, and return True.

        If the ranks have voted against early sending, send nothing and return False.
        """
        if not self._vote.is_unanimous():
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
        if len(variables) != len(self._variables) or not all(map(is_, variables, self._variables)):
            return False
        return all(self._has_sent(index, grad) for index, grad in enumerate(gradients))

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

    def _send_next(self) -> None:
        self._sender.send_bucket(self._buckets[self._num_sent], self._variables)
        self._num_sent += 1

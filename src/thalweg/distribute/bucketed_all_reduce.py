"""Sender of one optimizer's dense gradients, in buckets (buffers of several tensors)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from thalweg.distribute.buckets import Bucket, Compression, Sending, plan_buckets
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding.reduce_scatter import Scatter
from thalweg.distribute.sharding.shards import Shards


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
            variables: All variables.
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

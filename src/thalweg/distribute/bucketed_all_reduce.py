"""Sender of the dense gradients of one optimizer, step after step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from thalweg.distribute.buckets import Bucket, Sending, Sent, plan_buckets
from thalweg.distribute.compression import Compression
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding.reduce_scatter import Scatter
from thalweg.distribute.sharding.shards import Shards


class Sender:
    """Dense gradients on their way, in buckets that stay from step to step.

    They are made anew when gradients of other shapes come, or when somebody has kept a sum, which
    lies in them: that remains as it was.

    Args:
        ranks: The ranks.
        how: How gradients are sent.
        compresses: Whether they are sent in 16 bits, if `how` says so.
        shards: Who has what of the variables, if each rank gets its parts of the sums alone; they
            are not compressed.
    """

    def __init__(
        self, ranks: Ranks, how: Sending, compresses: bool = False, shards: Shards | None = None
    ) -> None:
        self.ranks, self._how, self._shards = ranks, how, shards
        dtype = how.compression if compresses else None
        self._compression = None if dtype is None else Compression(dtype, ranks.size)
        self._buckets: list[Sent] = []
        self._holders: list[int] = []
        self._layout: list[object] | None = None

    @property
    def scatters(self) -> bool:
        """True if each rank gets only its parts of the sums."""
        return self._shards is not None

    def buckets_for(
        self, like: Sequence[tuple[int, Tensor]], variables: Sequence[Tensor]
    ) -> Sequence[Sent]:
        """Buckets for tensors, the last one first, as the backward pass computes them.

        Args:
            like: Numbers, and tensors of the same shapes and dtypes.
            variables: The variables by these numbers.
        """
        for bucket in self._buckets:
            bucket.wait()  # a step that failed has not
        like = sorted(like, key=lambda each: -each[0])
        layout: list[Any] = [(place, each.shape, each.dtype, each.device) for place, each in like]
        made = Bucket
        if self._shards is not None:
            made = partial(Scatter, self._shards, variables)
            own = [variables[place] for place, _ in like]  # its buckets keep them alive
            layout += [(id(var), self._shards.pieces(var)) for var in own]
        if layout != self._layout or self._holders != [
            each.count_holders() for each in self._buckets
        ]:
            self._layout, self._buckets = None, []  # or they would be there twice for a while
            self._buckets = plan_buckets(like, self._how.bucket_size, made)
            self._holders = [each.count_holders() for each in self._buckets]
            self._layout = layout
        return self._buckets

    def send_bucket(self, bucket: Sent, variables: Sequence[Tensor]) -> None:
        """Begin to add up what all ranks have in a bucket; its numbers are those of variables."""
        if self._compression is not None and isinstance(bucket, Bucket):
            self._compression.compress(bucket, variables)
        bucket.send(self.ranks, self._how.ordered)

    def begin_step(self) -> None:
        """Begin a step; what was sent for another one was in vain."""
        if self._compression is not None:
            self._compression.begin_step()

    def keep_wanted(self, variables: Iterable[Tensor]) -> None:
        """Say of which variables dense sums were wanted."""
        if self._compression is not None:
            self._compression.keep_wanted(variables)

    def commit_step(self) -> None:
        """Say that the sums were applied."""
        if self._compression is not None:
            self._compression.commit_step()

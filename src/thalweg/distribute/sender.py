"""What sends the dense gradients of one optimizer, step after step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from thalweg.distribute.buckets import Bucket, Sending, planned
from thalweg.distribute.ranks import Ranks


class Sender:
    """Dense gradients on their way, in buckets that stay from step to step.

    They are made anew when gradients of other shapes come, or when somebody has kept a sum, which
    lies in them: that remains as it was.

    Args:
        ranks: The ranks.
        how: How gradients are sent.
    """

    def __init__(self, ranks: Ranks, how: Sending) -> None:
        self.ranks, self._how = ranks, how
        self._buckets: list[Bucket] = []
        self._holders: list[int] = []
        self._layout: list[Any] | None = None

    def buckets(self, like: Sequence[tuple[int, Tensor]]) -> list[Bucket]:
        """Buckets for tensors, the last one first, as the backward pass computes them.

        Args:
            like: Numbers, and tensors of the same shapes and dtypes.
        """
        for bucket in self._buckets:
            bucket.wait()  # a step that failed has not
        like = sorted(like, key=lambda each: -each[0])
        layout = [(place, each.shape, each.dtype, each.device) for place, each in like]
        if layout != self._layout or self._holders != [each.holders() for each in self._buckets]:
            self._layout, self._buckets = None, []  # or they would be there twice for a while
            self._buckets = planned(like, self._how.bucket_size)
            self._holders = [each.holders() for each in self._buckets]
            self._layout = layout
        return self._buckets

    def send(self, bucket: Bucket) -> None:
        """Begin to add up what all ranks have in a bucket."""
        bucket.send(self.ranks, self._how.ordered)

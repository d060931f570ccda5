"""Gradients in 16 bits on their way, with error feedback.

After "1-bit stochastic gradient descent and its application to data-parallel distributed training
of speech DNNs" (Seide et al. 2014): what rounding leaves out of a gradient is added to the next.

torch has hooks for this, `fp16_compress_hook` and its like, which take a `GradBucket` of
DistributedDataParallel: a class without a constructor in Python ("GradBucket: No constructor
defined!"), and they feed nothing back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from thalweg.distribute.buckets import Bucket

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_WIDE = (torch.float32, torch.float64)


class Compression:
    """Rounding errors of the 16-bit gradients of each variable, on this rank.

    A step that is not taken leaves them unchanged.

    Args:
        dtype: The dtype that is sent.
        count: The number of ranks; each sends its gradient divided by it.
    """

    def __init__(self, dtype: torch.dtype, count: int) -> None:
        self._dtype, self._count = dtype, count
        self._left = WeakTensorKeyDictionary()
        self._next: dict[int, tuple[Tensor, Tensor]] = {}  # of a step that may not be taken

    def begin_step(self) -> None:
        """Begin a step, or begin it again."""
        self._next = {}

    def compress(self, bucket: Bucket, variables: Sequence[Tensor]) -> None:
        """Send a bucket in 16 bits, with the rounding errors of the last time added.

        Args:
            bucket: It holds gradients.
            variables: Their variables by the bucket's numbers. One that comes twice, and what has
                neither 32 nor 64 bits, gets nothing back.
        """
        if bucket.dtype not in _WIDE:
            return
        own = [variables[place] for place in bucket.places]
        for part, var in zip(bucket.parts.values(), own, strict=True):
            left = None if id(var) in self._next else self._left.get(var)
            if left is not None and (left.shape, left.device) == (part.shape, part.device):
                part.add_(left)
        for var, left in zip(own, bucket.compress(self._dtype, self._count), strict=True):
            self._next.setdefault(id(var), (var, left))

    def keep_wanted(self, variables: Iterable[Tensor]) -> None:
        """Say of which variables the sums were wanted."""
        wanted = set(map(id, variables))
        self._next = {key: each for key, each in self._next.items() if key in wanted}

    def commit_step(self) -> None:
        """Say that the sums were applied."""
        for var, left in self._next.values():
            self._left[var] = left
        self._next = {}

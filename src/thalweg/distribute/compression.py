"""Compression of gradients to 16 bits, with error feedback.

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
    """Rounding errors of 16-bit gradients, per variable of this rank.

    An unfinished step leaves the errors of earlier steps unchanged.

    Args:
        dtype: The 16-bit dtype.
        count: The number of ranks, by which each gradient is divided.
    """

    def __init__(self, dtype: torch.dtype, count: int) -> None:
        self._dtype, self._count = dtype, count
        self._residuals = WeakTensorKeyDictionary()
        # Residuals of a step that may still fail.
        self._next_residuals: dict[int, tuple[Tensor, Tensor]] = {}

    def begin_step(self) -> None:
        """Start a step; drop the rounding errors of an unfinished one."""
        self._next_residuals = {}

    def compress(self, bucket: Bucket, variables: Sequence[Tensor]) -> None:
        """Add the last step's rounding errors to a bucket of gradients in place, and round it to 16
        bits.

        The bucket sends its rounded copy. The new rounding errors count from `commit_step` on.

        Args:
            bucket: The bucket. Nothing is done unless its dtype is float32 or float64.
            variables: All variables, by index. A second gradient of a variable has no error
                feedback.
        """
        if bucket.dtype not in _WIDE:
            return
        bucket_vars = [variables[index] for index in bucket.places]
        for part, var in zip(bucket.parts.values(), bucket_vars, strict=True):
            residual = None if id(var) in self._next_residuals else self._residuals.get(var)
            layout = part.shape, part.device
            if residual is not None and (residual.shape, residual.device) == layout:
                part.add_(residual)
        residuals = bucket.compress(self._dtype, self._count)
        for var, residual in zip(bucket_vars, residuals, strict=True):
            self._next_residuals.setdefault(id(var), (var, residual))

    def keep_errors_of(self, variables: Iterable[Tensor]) -> None:
        """Drop new rounding errors of all variables but these."""
        variable_ids = set(map(id, variables))
        self._next_residuals = {
            key: residual for key, residual in self._next_residuals.items() if key in variable_ids
        }

    def commit_step(self) -> None:
        """Keep the new rounding errors for the next step; called after the sums were applied."""
        for var, residual in self._next_residuals.values():
            self._residuals[var] = residual
        self._next_residuals = {}

"""Copies of variables in narrower dtypes, and detection of foreign writes to them."""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.variable import numpy_copy

# Half of a bfloat16's last place, in the bits of a float32.
HALF_PLACE = 0x8000


def saturated(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a new tensor: `values` clamped to the finite range of `dtype`, and rounded."""
    largest = torch.finfo(dtype).max
    return values.detach().clamp(-largest, largest).to(dtype)


def resumed(var: Tensor, copy: Tensor) -> Tensor:
    """Return a new tensor: elements of `copy` that other code has written, elsewhere `var`.

    A step sets `copy` to `var`, rounded to the 16-bit dtype of `copy`. An element of `copy` with
    different bits was written by other code. -0 differs from 0. For a number halfway between two
    bfloat16 numbers, both count as equal. The result has the dtype of `var`.
    """
    original = flushed = var.detach()
    # A product with 1 flushes the denormals that a step would have flushed.
    if original.device.type == "cpu":
        with np.errstate(all="ignore"):
            exact = original if original.dtype == torch.float64 else original.float()
            flushed = torch.from_numpy(np.asarray(numpy_copy(exact) * 1))
    if copy.dtype == torch.bfloat16:
        matches = is_nearest(flushed, copy.detach())
    else:
        matches = saturated(flushed, copy.dtype).view(torch.int16) == copy.detach().view(
            torch.int16
        )
    return torch.where(matches, original, copy.detach().to(original.dtype))


def is_nearest(values: Tensor, candidates: Tensor) -> Tensor:
    """Return a bool tensor: True where no bfloat16 is nearer to the number than the candidate.

    Halfway between two bfloat16 numbers, both are nearest: master weights round such numbers to
    even, split weights away from zero. The result is False for NaN.

    Args:
        values: The numbers. A number beyond the largest bfloat16 counts as the largest.
        candidates: A bfloat16 for each number.
    """
    largest = torch.finfo(torch.bfloat16).max
    single = values.clamp(-largest, largest).float()
    distance = single.view(torch.int32).long() - (candidates.view(torch.int16).long() << 16)
    return (distance.abs() <= HALF_PLACE) & ~single.isnan()

"""What a copy of a variable in a narrower type holds, and what others wrote to it."""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.variable import numpy_copy

HALF_PLACE = 0x8000  # half of a bfloat16's last place, in the bits of a float32


def saturated(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in a narrower type, as tensors of their own; what is too large is the largest."""
    largest = torch.finfo(dtype).max
    return values.detach().clamp(-largest, largest).to(dtype)


def resumed(var: Tensor, copy: Tensor) -> Tensor:
    """Return a variable, or its copy where that is not what a step left: there others wrote to it.

    They are compared by bits, so that -0 is not 0. Values to which a number rounds cannot be told
    apart, nor can the two bfloat16 between which it lies in the middle.
    """
    original = flushed = var.detach()
    if original.device.type == "cpu":  # times 1, which flushes what a step would have flushed
        with np.errstate(all="ignore"):
            exact = original if original.dtype == torch.float64 else original.float()
            flushed = torch.from_numpy(np.asarray(numpy_copy(exact) * 1))
    if copy.dtype == torch.bfloat16:
        is_step_value = is_nearest(flushed, copy.detach())
    else:
        is_step_value = saturated(flushed, copy.dtype).view(torch.int16) == copy.detach().view(
            torch.int16
        )
    return torch.where(is_step_value, original, copy.detach().to(original.dtype))


def is_nearest(numbers: Tensor, candidates: Tensor) -> Tensor:
    """Return where a bfloat16 is one of the nearest to a number, by bits; nowhere to NaN.

    Of two that are as near, a master is rounded to the even one. The upper part of a split weight
    is the one away from zero, because no code stands for half a place up; see `codecs.split8`.

    Args:
        numbers: The numbers; what is too large for a bfloat16 counts as the largest.
        candidates: The bfloat16, beside them.
    """
    largest = torch.finfo(torch.bfloat16).max
    single = numbers.clamp(-largest, largest).float()
    distance = single.view(torch.int32).long() - (candidates.view(torch.int16).long() << 16)
    return (distance.abs() <= HALF_PLACE) & ~single.isnan()

"""What a copy of a variable in a narrower type holds, and what others wrote to it."""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.variable import numpy_copy


def saturated(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in a narrower type, as tensors of their own; what is too large is the largest."""
    largest = torch.finfo(dtype).max
    return values.detach().clamp(-largest, largest).to(dtype)


def resumed(var: Tensor, copy: Tensor) -> Tensor:
    """A variable, or its copy where that is not what a step left: there others wrote to it.

    They are compared by bits, so that -0 is not 0. What rounds to the same cannot be told apart.
    """
    own = begun = var.detach()
    if own.device.type == "cpu":  # times 1, which flushes what a step would have flushed
        with np.errstate(all="ignore"):
            wide = own if own.dtype == torch.float64 else own.float()
            begun = torch.from_numpy(np.asarray(numpy_copy(wide) * 1))
    left = saturated(begun, copy.dtype).view(torch.int16) == copy.detach().view(torch.int16)
    return torch.where(left, own, copy.detach().to(own.dtype))

"""Memory for slots: on Linux in huge pages, which cost fewer address translations."""

from __future__ import annotations

import ctypes
import sys

import torch
from torch import Tensor

HUGE = 1 << 21  # bytes of a huge page on x86-64, and of the larger kind on arm64
_ADVICE = 14  # MADV_HUGEPAGE


def allocate_block(count: int, initial: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A contiguous tensor of `count` elements filled with `initial`, and its storage no more.

    What else it held would come into files.
    """
    size = count * dtype.itemsize
    if device.type != "cpu" or not sys.platform.startswith("linux") or size < HUGE:
        return torch.full((count,), initial, dtype=dtype, device=device)
    room = torch.empty(size + HUGE, dtype=torch.uint8, device="cpu")
    start = -room.data_ptr() % HUGE
    # The kernel may refuse, or have no such pages: then these are ordinary ones.
    ctypes.CDLL(None).madvise(
        ctypes.c_void_p(room.data_ptr() + start), ctypes.c_size_t(size), _ADVICE
    )
    own: Tensor = torch.from_numpy(room.numpy()[start : start + size])  # pyright: ignore
    return own.view(dtype).fill_(initial)

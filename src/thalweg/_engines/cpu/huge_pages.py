"""Memory for slots: on Linux in huge pages, which cost fewer address translations."""

from __future__ import annotations

import ctypes
import sys

import torch
from torch import Tensor

HUGE = 1 << 21  # bytes of a huge page on x86-64, and of the larger kind on arm64
_ADVICE = 14  # MADV_HUGEPAGE


def allocate_block(count: int, initial: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a contiguous tensor of `count` elements filled with `initial`.

    The storage has exactly `count` elements, because `torch.save` writes whole storages.
    """
    size = count * dtype.itemsize
    if device.type != "cpu" or not sys.platform.startswith("linux") or size < HUGE:
        return torch.full((count,), initial, dtype=dtype, device=device)
    memory = torch.empty(size + HUGE, dtype=torch.uint8, device="cpu")
    start = -memory.data_ptr() % HUGE
    # The pages are ordinary ones if the kernel has no huge pages, or refuses them.
    ctypes.CDLL(None).madvise(
        ctypes.c_void_p(memory.data_ptr() + start), ctypes.c_size_t(size), _ADVICE
    )
    # A view of `memory` would have its larger storage; a tensor from an array has its own.
    block: Tensor = torch.from_numpy(memory.numpy()[start : start + size])  # pyright: ignore
    return block.view(dtype).fill_(initial)

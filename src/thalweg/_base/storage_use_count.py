"""Number of tensors that share a storage."""

from __future__ import annotations

from itertools import count

import torch

_numbers = count(1 << 32)
_use_count = getattr(torch._C, "_storage_Use_Count", None)  # pyright: ignore[reportPrivateUsage]


def count_holders(storage: torch.UntypedStorage) -> int:
    """Return the number of tensors in a storage; without torch's counter, a new number per call.

    CPU builds of torch 2.6 lack the counter. Two counts then differ, so that callers copy the
    memory.
    """
    return next(_numbers) if _use_count is None else _use_count(storage._cdata)  # pyright: ignore

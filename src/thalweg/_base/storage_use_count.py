"""Number of tensors that share a storage."""

from __future__ import annotations

from itertools import count

import torch

_numbers = count(1 << 32)
_use_count = getattr(torch._C, "_storage_Use_Count", None)  # pyright: ignore[reportPrivateUsage]


def count_holders(storage: torch.UntypedStorage) -> int:
    """Return the number of tensors in a storage, or a new number each time if torch lacks it.

    Torch 2.6 counts in its CUDA builds only. Code that compares two counts then assumes that
    another tensor holds the memory, and copies.
    """
    return next(_numbers) if _use_count is None else _use_count(storage._cdata)  # pyright: ignore

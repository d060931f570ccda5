"""Number of tensors in the same memory."""

from __future__ import annotations

from itertools import count

import torch

_numbers = count(1 << 32)
_tell = getattr(torch._C, "_storage_Use_Count", None)  # pyright: ignore[reportPrivateUsage]


def count_holders(storage: torch.UntypedStorage) -> int:
    """Return the number of tensors in a storage; if torch does not have it, a number never returned
    before.

    Torch 2.6 has it in its builds for CUDA alone. Code that compares two counts then assumes that
    another tensor holds the memory, and copies.
    """
    return next(_numbers) if _tell is None else _tell(storage._cdata)  # pyright: ignore

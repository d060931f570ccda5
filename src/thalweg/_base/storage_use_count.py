"""How many tensors lie in the same memory."""

from __future__ import annotations

from itertools import count

import torch

_numbers = count(1 << 32)
_tell = getattr(torch._C, "_storage_Use_Count", None)  # pyright: ignore[reportPrivateUsage]


def count_holders(storage: torch.UntypedStorage) -> int:
    """How many tensors lie in a storage; where torch does not tell, a number never given before.

    Torch 2.6 tells in its builds for CUDA alone. Whoever compares two counts then takes it that
    somebody else holds the memory, and copies.
    """
    return next(_numbers) if _tell is None else _tell(storage._cdata)  # pyright: ignore

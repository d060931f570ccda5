"""Flush denormals on the calling thread for a while, and put its flags back."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import numpy as np
import torch

_TINY = np.full(1, 1e-40, np.float32)
_TWO = np.full(1, 2.0, np.float32)


def flushing() -> bool:
    """Whether the calling thread treats denormals as zero."""
    return bool((_TINY * _TWO)[0] == 0)


@contextlib.contextmanager
def denormals(flush: bool) -> Generator[None]:
    """Flush (True) or keep (False) denormals in NumPy arithmetic on this thread."""
    found = flushing()
    if found == flush:
        yield
        return
    torch.set_flush_denormal(flush)
    try:
        yield
    finally:
        torch.set_flush_denormal(found)

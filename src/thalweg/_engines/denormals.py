"""Context manager that flushes or keeps denormals on the calling thread."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from thalweg._base.context_managers import ContextSetting, Sections

_TINY = np.full(1, 1e-40, np.float32)
_TWO = np.full(1, 2.0, np.float32)


def is_flushing() -> bool:
    """Return True if NumPy flushes denormals to zero on the calling thread; runs one product."""
    return bool((_TINY * _TWO)[0] == 0)


def set_denormals(flush: bool) -> ContextSetting:
    """Return a context manager that flushes (True) or keeps (False) denormals on this thread."""
    return ContextSetting(partial(_switch_flag, flush))


def _switch_flag(flush: bool) -> Sections:
    """Return calls that set this thread's mode, and calls that restore the mode, or [], []."""
    was_flushing = is_flushing()
    if was_flushing == flush:
        return [], []
    return [partial(torch.set_flush_denormal, flush)], [
        partial(torch.set_flush_denormal, was_flushing)
    ]

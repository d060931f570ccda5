"""Detection of hooks and profilers that observe steps of optimizers.

Torch wraps `step` of every class in a record for profilers, which takes as long as all else in a
step of few parameters. Here a step makes that record only while a profiler reads it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,  # pyright: ignore[reportPrivateUsage]
    _global_optimizer_pre_hooks,  # pyright: ignore[reportPrivateUsage]
)

_SYMBOL = "_ZN2at12hasCallbacksEv"  # at::hasCallbacks(): of profilers, of this thread or of all


@cache
def _has_callbacks() -> Callable[[], object]:
    """Return a function that returns whether operations are recorded; True if torch lacks the
    symbol.
    """
    for path in Path(torch.__file__).with_name("lib").glob("*torch_cpu*"):
        try:
            function = ctypes.PyDLL(str(path))[_SYMBOL]
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_bool
        return function
    return lambda: True


def is_watched(optimizer: Any) -> bool:
    """Return True if a hook or a profiler observes the steps of an optimizer."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or _has_callbacks()()
    )

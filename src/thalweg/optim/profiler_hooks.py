"""Detection of hooks and profilers that observe steps of optimizers.

Torch wraps `step` of every class in a record for profilers, which takes as long as all else in a
step of few parameters. Here a step makes that record only while a profiler reads it.
"""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import (
    _global_optimizer_post_hooks,  # pyright: ignore[reportPrivateUsage]
    _global_optimizer_pre_hooks,  # pyright: ignore[reportPrivateUsage]
)


def has_hooks(optimizer: Any) -> bool:
    """Return True if torch's hooks are called around a step of an optimizer."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
    )

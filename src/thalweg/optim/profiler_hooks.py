"""Detection of hooks and profilers that observe steps of optimizers.

Torch wraps every `step` in a record for profilers. For few parameters, the record takes as long as
the rest of the step. Here a step makes such a record only while a profiler reads it.
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

"""An exponential moving average of the variable, as one more slot of any rule."""

from __future__ import annotations

from typing import Any

from thalweg.formula import where

EMA = "ema"
WEIGHT = "ema_weight"


def average(var: Any, ema: Any, *, ema_weight: Any) -> Any:
    """Once per element; `torch.optim.swa_utils.get_ema_avg_fn`, with 1 - decay as the weight."""
    difference = var - ema
    near = ema + ema_weight * difference
    return where(ema_weight < 0.5, near, var + (ema_weight - 1) * difference)

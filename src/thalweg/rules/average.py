"""An exponential moving average of the variable, as one more slot of any rule."""

from __future__ import annotations

from typing import Any

from thalweg.formula import where

EMA = "ema"
WEIGHT = "ema_weight"


def average(var: Any, ema: Any, *, ema_weight: Any) -> Any:
    """Return the new average, as torch's `swa_utils.get_ema_avg_fn`, with weight 1 - decay."""
    difference = var - ema
    from_ema = ema + ema_weight * difference
    return where(ema_weight < 0.5, from_ema, var + (ema_weight - 1) * difference)

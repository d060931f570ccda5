"""Loss scaling by the distribution of the largest gradient.

The order of operations is that of a session, whose optimizer of graphs moves constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from thalweg.core import vectors
from thalweg.ground.scalars import log, power, reciprocal
from thalweg.openseq2seq.optimizers.loss_scaler import LossScaler, State

_SHIPPED_CEILING = 16.0


class LogMaxScaler(LossScaler):
    """Takes log2 of the largest gradient for normally distributed, and leaves it room.

        x = log2(amax), log_max on overflow
        mu, sigma = moving mean and deviation of x
        scale = 2^(log_max - (mu + overflow_std_dev sigma)), in [scale_min, scale_max]

    The scale is 1 before the first update.

    Args:
        params: Optional. A dict of floats: `scale_min` (1.0), `scale_max` (2^14), `log_max` (16.0),
            `beta1` (0.99) for the mean, `beta2` (0.999) for the deviation, and `overflow_std_dev`
            (3.09), how many deviations the mean stays below `log_max`.
        as_shipped: Whether to compute what OpenSeq2Seq does. There an overflow counts as
            x = 2^log_max, so that the scale stays at `scale_min` for some 11,000 updates;
            the scale is 2^(16 - ...) whatever `log_max`; and gradients that are all 0 make it NaN
            for good. Here they count as an update, and leave everything else as it is.

    Raises:
        ValueError: A parameter is unknown or no float.
    """

    DEFAULTS: Mapping[str, float | int] = {
        "scale_min": 1.0,
        "scale_max": 2.0**14,
        "log_max": 16.0,
        "beta1": 0.99,
        "beta2": 0.999,
        "overflow_std_dev": 3.09,
    }
    READS_AMAX = True

    def __init__(self, params: Mapping[str, Any] | None = None, as_shipped: bool = False) -> None:
        super().__init__(params, as_shipped)

    def _initial(self) -> State:
        zeros = ("x_hat", "slow_x_hat", "xsquared_hat")
        ones = ("b1_correction", "b2_correction")
        return {
            "scale": np.float32(1),
            "iteration": np.int64(0),
            **dict.fromkeys(zeros, np.float32(0)),
            **dict.fromkeys(ones, np.float32(1)),
        }

    def _logarithm(self, amax: Any, overflow: Any) -> Any:
        highest = self._float("log_max")
        if self._as_shipped:
            highest = power(np.float32(2), highest)
        x = vectors.log(amax) * float(reciprocal(log(np.float32(2))))
        return vectors.functions_of(amax).where(overflow, float(highest), x)

    def _next(self, state: State, amax: Any, overflow: Any) -> State:
        of = vectors.functions_of(amax)
        x = self._logarithm(amax, overflow)
        beta1, beta2 = (float(self._float(name)) for name in ("beta1", "beta2"))
        rest1, rest2 = (float(np.float32(1 - self._params[name])) for name in ("beta1", "beta2"))
        found = {
            "x_hat": beta1 * state["x_hat"] + rest1 * x,
            "slow_x_hat": beta2 * state["slow_x_hat"] + rest2 * x,
            "xsquared_hat": beta2 * state["xsquared_hat"] + rest2 * x * x,
            "b1_correction": state["b1_correction"] * beta1,
            "b2_correction": state["b2_correction"] * beta2,
        }
        mean = found["x_hat"] / (1 - found["b1_correction"])
        slow_mean = found["slow_x_hat"] / (1 - found["b2_correction"])
        square = found["xsquared_hat"] / (1 - found["b2_correction"])
        deviation = of.sqrt(vectors.at_least(square - slow_mean * slow_mean, 0.0))
        ceiling = _SHIPPED_CEILING if self._as_shipped else float(self._float("log_max"))
        room = ceiling - mean - deviation * float(self._float("overflow_std_dev"))
        found["scale"] = self._clamped(vectors.power(2.0, room))
        if self._as_shipped:
            return found
        is_idle = (amax == 0) & ~overflow
        return {name: of.where(is_idle, state[name], each) for name, each in found.items()}

"""Loss scale from the logarithms of the largest gradients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from thalweg._core.options.loss_scale_policies import Policy, State, log_max
from thalweg.openseq2seq.optimizers.loss_scaler import LossScaler


class LogMaxScaler(LossScaler):
    """Loss scale from the mean and deviation of log2 of the largest gradient magnitude.

        x = log2(amax), log_max on overflow
        mu, sigma = moving mean and deviation of x
        scale = 2^(log_max - (mu + overflow_std_dev sigma)), in [scale_min, scale_max]

    The scale is 1 before the first update.

    Args:
        params: Optional. A dict of floats: `scale_min` (1.0), `scale_max` (2^14), `log_max` (16.0),
            `beta1` (0.99) for the mean, `beta2` (0.999) for the deviation, and `overflow_std_dev`
            (3.09), the distance from the mean to `log_max` in deviations.
        as_shipped: True to reproduce OpenSeq2Seq: an overflow counts as x = 2^log_max, so that the
            scale stays at `scale_min` for some 11,000 updates. The scale is 2^(16 - ...) for any
            `log_max`. Gradients that are all 0 make the scale NaN for good; if False, they only
            count as an update.

    Raises:
        ValueError: A parameter is unknown or not a float.
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

    def _initial(self) -> State:
        """Return the initial state as {name: value}: scale 1, moments 0, bias corrections 1."""
        zeros = ("x_hat", "slow_x_hat", "xsquared_hat")
        ones = ("b1_correction", "b2_correction")
        return {
            "scale": np.float32(1),
            "iteration": np.int64(0),
            **dict.fromkeys(zeros, np.float32(0)),
            **dict.fromkeys(ones, np.float32(1)),
        }

    def _policy(self) -> Policy:
        return partial(log_max, **self._params, as_shipped=self._as_shipped)

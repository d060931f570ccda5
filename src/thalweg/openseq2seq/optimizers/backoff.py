"""Loss scale that shrinks on overflow and grows after updates without overflow."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from thalweg._core.options.loss_scale_policies import Policy, State, backoff
from thalweg.errors import InvalidArgumentError
from thalweg.openseq2seq.optimizers.loss_scaler import LossScaler


class BackoffScaler(LossScaler):
    """Loss scale that shrinks on overflow, and grows after `step_window` updates without overflow.

        overflow:                    scale <- scale / step_factor
        step_window updates without: scale <- scale step_factor

    The scale stays in [scale_min, scale_max].

    Args:
        params: Optional. A dict of `scale_min` (1.0), `scale_max` (2^14), `step_factor` (2.0), all
            floats, and `step_window` (2000), an int.
        as_shipped: Ignored; accepted as by `LogMaxScaler`.

    Raises:
        ValueError: A parameter is unknown or of another type, or `step_window` is 0.

    Differs from:
        OpenSeq2Seq, where a `step_window` of 0 fails at the first update.
    """

    DEFAULTS: Mapping[str, float | int] = {
        "scale_min": 1.0,
        "scale_max": 2.0**14,
        "step_factor": 2.0,
        "step_window": 2000,
    }

    def _initial(self) -> State:
        if not self._params["step_window"]:
            raise InvalidArgumentError("step_window has to be another number than 0.")
        return {
            "scale": np.float32(self._params["scale_max"]),
            "iteration": np.int64(0),
            "last_overflow_iteration": np.int64(-1),
        }

    def _policy(self) -> Policy:
        return partial(backoff, **self._params)

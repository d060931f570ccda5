"""LARC: a learning rate for each variable, from the norms of variable and gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from thalweg.core.norms import larc_ratio
from thalweg.engines import saturated
from thalweg.openseq2seq.params import check_params
from thalweg.variable import REDUCED

_LARGEST = np.finfo(np.float32).max


class Larc(NamedTuple):
    """How gradients are scaled.

        clip:  r = min(max(eta |var| / (lr (|g| + epsilon)), min_update), 1)
        scale: r = max(eta |var| / (|g| + epsilon), min_update)

    Attributes:
        eta: The wanted size of a step in units of the variable.
        clips: Whether the mode is "clip" and not "scale".
        min_update: The smallest r.
        epsilon: Added to the norm of a gradient.
    """

    eta: float
    clips: bool
    min_update: float
    epsilon: float

    @classmethod
    def of(cls, larc_params: Mapping[str, Any]) -> Larc:
        """From the parameters as a config has them.

        Raises:
            ValueError: A parameter is missing, unknown, of another type or none of the modes.
        """
        check_params(
            larc_params,
            {"larc_eta": float},
            {"larc_mode": ["clip", "scale"], "min_update": float, "epsilon": float},
        )
        return cls(
            larc_params["larc_eta"],
            larc_params.get("larc_mode", "clip") == "clip",
            larc_params.get("min_update", 1e-7),
            larc_params.get("epsilon", 1e-7),
        )

    def ratios(
        self,
        variable_norms: np.ndarray,
        gradient_norms: np.ndarray,
        rate: Any,
        as_shipped: bool = False,
    ) -> np.ndarray:
        """r for each variable, before it is capped at 1; float32 of shape (n,).

        A variable of norm 0 has `min_update`. With `as_shipped` it has NaN where lr is 0, too, as
        0 / 0.
        """
        with np.errstate(all="ignore"):
            return larc_ratio(
                variable_norms.astype(np.float32),
                gradient_norms.astype(np.float32),
                np.float32(float(rate)),
                eta=float(self.eta),
                clips=self.clips,
                min_update=float(self.min_update),
                epsilon=float(self.epsilon),
                zero_by_zero=as_shipped,
            )

    def factors(self, ratios: np.ndarray, dtypes: Sequence[torch.dtype]) -> np.ndarray:
        """What gradients of variables of these dtypes are multiplied by; finite or NaN."""
        capped = np.minimum(ratios, np.float32(1)) if self.clips else ratios
        found = torch.from_numpy(capped.clip(-_LARGEST, _LARGEST))
        for index, dtype in enumerate(dtypes):
            if dtype in REDUCED:
                found[index] = saturated(found[index], dtype)
        return found.numpy()

"""LARC: a learning rate for each variable, from the norms of variable and gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from thalweg.core.norms import larc_ratio
from thalweg.core.vectors import alike, number, place_of, rounded
from thalweg.engines import saturated
from thalweg.openseq2seq.params import check_params
from thalweg.variable import REDUCED

_LARGEST = torch.finfo(torch.float32).max


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
        variable_norms: Any,
        gradient_norms: Any,
        rate: Any,
        as_shipped: bool = False,
    ) -> Any:
        """r for each variable, before it is capped at 1; float32 of shape (n,).

        Of norms that are tensors of a device it is one, too. A variable of norm 0 has `min_update`.
        With `as_shipped` it has NaN where lr is 0, too, as 0 / 0.
        """
        there = place_of(variable_norms)
        with np.errstate(all="ignore"):
            return larc_ratio(
                rounded(variable_norms, np.float32, there),
                rounded(gradient_norms, np.float32, there),
                number(np.float32(float(rate)), there),
                eta=float(self.eta),
                clips=self.clips,
                min_update=float(self.min_update),
                epsilon=float(self.epsilon),
                zero_by_zero=as_shipped,
            )

    def factors(self, ratios: Any, dtypes: Sequence[torch.dtype]) -> Any:
        """What gradients of variables of these dtypes are multiplied by; finite or NaN."""
        is_array = not isinstance(ratios, torch.Tensor)
        found = torch.from_numpy(ratios) if is_array else ratios
        found = found.clamp(-_LARGEST, 1.0 if self.clips else _LARGEST)
        for dtype in [each for each in REDUCED if each in dtypes]:
            own = alike(np.array([each is dtype for each in dtypes]), found)
            found = torch.where(own, saturated(found, dtype).float(), found)
        return found.numpy() if is_array else found

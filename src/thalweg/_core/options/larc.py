"""LARC: a learning rate for each variable, from the norms of variable and gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from thalweg._core.vectors import functions_of, number, place_like, place_of, round_to
from thalweg._engines import saturated
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

    Reference: OpenSeq2Seq, optimizers.optimizers; https://arxiv.org/abs/1708.03888
    """

    eta: float
    clips: bool
    min_update: float
    epsilon: float

    def ratios(
        self, variable_norms: object, gradient_norms: object, rate: Any, zero_by_zero: bool = False
    ) -> Any:
        """r for each variable, before it is capped at 1; float32 of shape (n,).

        Of norms that are tensors of a device it is one, too. A variable of norm 0 has `min_update`;
        with `zero_by_zero` it has NaN where lr is 0, too, as 0 / 0.
        """
        of, there = functions_of(variable_norms), place_of(variable_norms)
        with np.errstate(all="ignore"):
            sizes = round_to(variable_norms, np.float32, there)
            bounds = round_to(gradient_norms, np.float32, there) + float(self.epsilon)
            if self.clips:
                bounds = number(np.float32(float(rate)), there) * bounds
            ratio = float(self.eta) * sizes / bounds
            if not zero_by_zero:
                ratio = of.where((sizes == 0) & (bounds == 0), 0.0, ratio)
            return of.maximum(ratio, of.full_like(ratio, float(self.min_update)))

    def factors(self, ratios: object, dtypes: Sequence[torch.dtype]) -> Any:
        """What gradients of variables of these dtypes are multiplied by; finite or NaN."""
        is_array = not isinstance(ratios, torch.Tensor)
        found = torch.from_numpy(ratios) if is_array else ratios  # pyright: ignore
        found = found.clamp(-_LARGEST, 1.0 if self.clips else _LARGEST)
        for dtype in [each for each in REDUCED if each in dtypes]:
            own = place_like(np.array([each is dtype for each in dtypes]), found)
            found = torch.where(own, saturated(found, dtype).float(), found)
        return found.numpy() if is_array else found

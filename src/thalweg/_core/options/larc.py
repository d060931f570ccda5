"""LARC: layer-wise learning rates from the norms of variable and gradient."""

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
    """Settings of LARC, which multiplies the gradient of each variable by r.

        clip:  r = min(max(eta |var| / (lr (|g| + epsilon)), min_update), 1)
        scale: r = max(eta |var| / (|g| + epsilon), min_update)

    Attributes:
        eta: Target ratio of the norms of step and variable.
        clips: True for the mode "clip", False for "scale".
        min_update: Minimum of r.
        epsilon: Term that is added to the norm of a gradient.

    Reference: OpenSeq2Seq, optimizers.optimizers; https://arxiv.org/abs/1708.03888
    """

    eta: float
    clips: bool
    min_update: float
    epsilon: float

    def ratios(
        self,
        variable_norms: object,
        gradient_norms: object,
        learning_rate: Any,
        zero_by_zero: bool = False,
    ) -> Any:
        """Return r of each variable before it is limited to 1; float32 of shape (n,).

        r is `min_update` for a variable of norm 0. With `zero_by_zero`, r is NaN if norm and
        denominator are 0. The result is an array or a tensor, like `variable_norms`.
        """
        xp, device = functions_of(variable_norms), place_of(variable_norms)
        with np.errstate(all="ignore"):
            sizes = round_to(variable_norms, np.float32, device)
            bounds = round_to(gradient_norms, np.float32, device) + float(self.epsilon)
            if self.clips:
                bounds = number(np.float32(float(learning_rate)), device) * bounds
            ratio = float(self.eta) * sizes / bounds
            if not zero_by_zero:
                ratio = xp.where((sizes == 0) & (bounds == 0), 0.0, ratio)
            return xp.maximum(ratio, xp.full_like(ratio, float(self.min_update)))

    def factors(self, ratios: object, dtypes: Sequence[torch.dtype]) -> Any:
        """Return the factor of each gradient: its ratio r, limited to a maximum.

        The maximum is 1 in the mode "clip", and the largest number of the gradient's dtype in the
        mode "scale". NaN is not changed. The result is an array if `ratios` is an array, else a
        tensor.
        """
        is_array = not isinstance(ratios, torch.Tensor)
        factors = torch.from_numpy(ratios) if is_array else ratios  # pyright: ignore
        factors = factors.clamp(-_LARGEST, 1.0 if self.clips else _LARGEST)
        for reduced_dtype in [dtype for dtype in REDUCED if dtype in dtypes]:
            has_dtype = place_like(np.array([dtype is reduced_dtype for dtype in dtypes]), factors)
            factors = torch.where(has_dtype, saturated(factors, reduced_dtype).float(), factors)
        return factors.numpy() if is_array else factors

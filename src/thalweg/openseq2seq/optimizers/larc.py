"""LARC: a learning rate for each variable, from the norms of variable and gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from thalweg.openseq2seq.optimizers.norms import norms
from thalweg.openseq2seq.params import check_params

Norms = TypeVar("Norms", Tensor, np.ndarray)


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
        gradients: Sequence[Tensor],
        variables: Sequence[Tensor],
        rate: Any,
        as_shipped: bool = False,
    ) -> Tensor:
        """r for each variable, before it is capped at 1; float32 of shape (n,).

        A variable of norm 0 has `min_update`. With `as_shipped` it has NaN where lr is 0, too, as
        0 / 0.
        """
        sizes = norms(variables, as_shipped)
        lengths = norms(gradients, as_shipped).to(sizes.device)
        return self.ratios_of(sizes, lengths, rate, as_shipped)

    def ratios_of(self, sizes: Norms, lengths: Norms, rate: Any, as_shipped: bool = False) -> Norms:
        """The same from the norms of variables and of gradients, float32 of shape (n,)."""
        of = _functions(sizes)
        bounds = lengths + self.epsilon
        if self.clips:
            bounds = _float32(rate, bounds) * bounds
        ratios = self.eta * sizes / bounds
        if not as_shipped:
            ratios = of.where((sizes == 0) & (bounds == 0), 0.0, ratios)
        return of.maximum(ratios, _float32(self.min_update, ratios))

    def capped(self, ratios: Norms) -> Norms:
        """What the gradients are multiplied by."""
        one = _float32(1.0, ratios)
        return _functions(ratios).minimum(ratios, one) if self.clips else ratios


def saturated(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A cast that gives the largest finite number instead of infinities; NaN stays."""
    highest = torch.finfo(dtype).max
    return tensor.clamp(-highest, highest).to(dtype)


def _functions(like: Any) -> Any:
    """Those of torch or those of NumPy."""
    return torch if isinstance(like, Tensor) else np


def _float32(value: Any, like: Any) -> Any:
    if not isinstance(like, Tensor):
        return np.float32(value)
    return torch.as_tensor(value, dtype=torch.float32, device=like.device)

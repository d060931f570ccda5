"""MARS, with the arguments and defaults of the class in timm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core.param_groups import Group, Params
from thalweg.formula import Rule
from thalweg.optim.modern.optimizer import Betas, ModernOptimizer, Rate
from thalweg.optim.param_state import Entries
from thalweg.rules import modern as rules

_TYPES = {"adamw": "MARS", "lion": "MARS_LION"}


class MARS(ModernOptimizer):
    """AdamW or Lion with corrected gradients: a fraction of a gradient's last change is added.

    The corrected gradient of a parameter is divided by its norm if that is above 1. Parameters of
    fewer than two dimensions take AdamW's steps with plain gradients, unless `optimize_1d` is True.
    As in timm, the first step has no correction, and parameters of more than two dimensions have
    one. In the authors' code the first change is from 0, and parameters of more than two dimensions
    take AdamW's steps.

    Raises:
        InvalidArgumentError: `mars_type` is neither "adamw" nor "lion", or `caution` is true.

    Args:
        gamma: The weight of a gradient's change.
        mars_type: "adamw" or "lion": the rule that uses the corrected gradients.
        optimize_1d: True to treat parameters of fewer than two dimensions like all others.
        lr_1d_factor: Factor of the rate of parameters of fewer than two dimensions.
        betas_1d: Betas of parameters of fewer than two dimensions; None for `betas`.
        caution: Must be False.

    Source: Yuan et al. 2024, https://arxiv.org/abs/2411.10438; timm.optim.Mars
    """

    _rule = "MARS"
    _unread = ("mars_type",)

    def _arguments(
        self,
        params: Params,
        lr: Rate = 3e-3,
        betas: Betas = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        gamma: float = 0.025,
        mars_type: str = "adamw",
        optimize_1d: bool = False,
        lr_1d_factor: float = 1.0,
        betas_1d: Betas | None = None,
        caution: bool = False,
    ) -> None:
        """Do nothing; the signature declares the arguments of the constructor."""

    def _completed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with `betas_1d` set."""
        pair = arguments["betas_1d"]
        return {**arguments, "betas_1d": arguments["betas"] if pair is None else pair}

    @classmethod
    def _choose_rule(cls, group: Group) -> Rule:
        return getattr(rules, _TYPES[group["mars_type"]])

    @classmethod
    def _check_choices(cls, group: Mapping[str, Any]) -> None:
        mars_type = group.get("mars_type")
        if not isinstance(mars_type, str) or mars_type not in _TYPES:
            names = " or ".join(map(repr, _TYPES))
            raise ValueError(f"mars_type must be {names}, not {show_value(mars_type)}")
        if group.get("caution"):
            raise ValueError(
                "caution=True is not offered: what it measures follows from a norm of the same step"
            )

    @staticmethod
    def _initials_of_param(param: Tensor) -> Entries:
        """Return the initial state that tells if a parameter has fewer than two dimensions."""
        return {"is_vector": float(param.dim() < 2)}

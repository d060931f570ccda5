"""MARS, with the arguments and defaults of the class in timm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core.param_groups import Group, Params
from thalweg.formula import Rule
from thalweg.optim.modern.arguments import Betas, Rate
from thalweg.optim.modern.optimizer import ModernOptimizer
from thalweg.optim.param_state import Entries
from thalweg.rules import modern as rules

_TYPES = {"adamw": "MARS", "lion": "MARS_LION"}


class MARS(ModernOptimizer):
    """AdamW, or Lion, of gradients to which a share of their change since the last one is added.

    The gradient of each parameter is then divided by its norm, if that is above 1. Parameters of
    fewer than two dimensions take AdamW's steps, with `betas_1d`, which is `betas` if None, and
    `lr_1d_factor` times the rate; with `optimize_1d` they are treated as all others. The first step
    has no change of the gradient. Both are as in timm: in the authors' code the first change is
    that from 0, and parameters of more than two dimensions take AdamW's steps.

    Raises:
        InvalidArgumentError: `mars_type` is neither "adamw" nor "lion", or `caution` is true, which
            is not supported: it depends on a norm of the same step.

    Args:
        gamma: The weight of a gradient's change.
        mars_type: "adamw" or "lion": the rule that uses the corrected gradients.
        optimize_1d: True if parameters of fewer than two dimensions take them, too.
        lr_1d_factor: Factor of their rate otherwise.
        betas_1d: Shares of their means that a step keeps otherwise.
        caution: Refused, if it is true.

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
        """Define the arguments of the constructor."""

    def _completed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with `betas_1d` set."""
        pair = arguments["betas_1d"]
        return {**arguments, "betas_1d": arguments["betas"] if pair is None else pair}

    @classmethod
    def _choose_rule(cls, group: Group) -> Rule:
        return getattr(rules, _TYPES[group["mars_type"]])

    @classmethod
    def _unfit_choices(cls, group: Mapping[str, Any]) -> list[str]:
        """Return reasons why the options of a group choose no rule; [] if they do."""
        mars_type = group.get("mars_type")
        if not isinstance(mars_type, str) or mars_type not in _TYPES:
            names = " or ".join(map(repr, _TYPES))
            return [f"mars_type must be {names}, not {show_value(mars_type)}"]
        if group.get("caution"):
            return [
                "caution=True is not offered: what it measures follows from a norm of the same step"
            ]
        return []

    @staticmethod
    def _initials_of_param(param: Tensor) -> Entries:
        """Return the initial state that tells if a parameter has fewer than two dimensions."""
        return {"is_vector": float(param.dim() < 2)}

"""Prodigy, with the arguments and defaults of the authors' class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from thalweg._base.showing import show_value
from thalweg._core.param_groups import Params
from thalweg.optim.modern.optimizer import Betas, ModernOptimizer, Rate


class Prodigy(ModernOptimizer):
    """AdamW that estimates its rate: leave `lr` at 1, or use a schedule that falls from 1.

    All groups share the estimate `d`, its maximum `d_max`, its numerator and the number of steps
    `k`, which follow from sums over all parameters; the state of each parameter has a copy. Groups
    must agree in all options that affect the estimate, and in the rate; a rate of 0 freezes a
    group. `fsdp_in_use` has no effect: sums always cover whole parameters.

    Raises:
        InvalidArgumentError: `d0` or `eps` is 0, `slice_p` is not 1, or groups differ in options
            that affect the estimate.

    Args:
        beta3: The fraction of the sums that a step keeps; None is the root of `betas[1]`.
        decouple: True for decoupled decay as in AdamW.
        use_bias_correction: True to correct means as Adam does.
        safeguard_warmup: True if the divisor of the estimate excludes the rate.
        d0: Initial estimate.
        d_coef: Factor of the estimate.
        growth_rate: Largest factor by which the estimate grows in a step.
        fsdp_in_use: Accepted without effect.
        slice_p: Must be 1.

    Source: Mishchenko and Defazio 2023, https://arxiv.org/abs/2306.06101; prodigyopt
    """

    _rule = "PRODIGY"
    _unread = ("fsdp_in_use", "slice_p")
    _common = ("betas", "beta3", "use_bias_correction", "safeguard_warmup", "d0", "d_coef",
               "growth_rate")  # fmt: skip

    def _arguments(
        self,
        params: Params,
        lr: Rate = 1.0,
        betas: Betas = (0.9, 0.999),
        beta3: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0,
        decouple: bool = True,
        use_bias_correction: bool = False,
        safeguard_warmup: bool = False,
        d0: float = 1e-6,
        d_coef: float = 1.0,
        growth_rate: float = float("inf"),
        fsdp_in_use: bool = False,
        slice_p: int = 1,
    ) -> None:
        """Do nothing; the signature declares the arguments of the constructor."""

    def _completed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the default of `beta3`, which depends on `betas`."""
        if arguments["beta3"] is not None:
            return arguments
        return {**arguments, "beta3": math.sqrt(arguments["betas"][1])}

    @classmethod
    def _unfit_choices(cls, group: Mapping[str, Any]) -> list[str]:
        if group.get("slice_p", 1) != 1:
            return [
                f"slice_p={show_value(group['slice_p'])} is not offered: sums are over all elements"
            ]
        zeros = [name for name in ("d0", "eps") if not group.get(name, 1.0)]
        return [f"{name} must be above 0" for name in zeros]

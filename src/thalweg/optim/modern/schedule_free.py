"""The schedule-free classes, with the arguments and defaults of the authors' classes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._core.options.update_targets import MASTER
from thalweg._core.options.weight_averaging import EMA
from thalweg._core.param_groups import Group, Params
from thalweg.errors import InvalidArgumentError
from thalweg.optim.group_options import number
from thalweg.optim.modern.optimizer import Betas, ModernOptimizer, Rate

_UNWRAPPED = "parameters go with the slot z, which a wrapper of their steps leaves behind"


class Means:
    """Mixin of the schedule-free classes: their means x can be swapped with the parameters."""

    param_groups: list[Group]
    step_cache: Any
    _has_means: bool = True

    def swapped(self) -> AbstractContextManager[None]:
        """Return a context manager in which parameters hold their means x, for evaluation.

        The end of the block restores the former values, also after an error. A parameter without a
        step keeps its value. Without a schedule-free rule, parameters hold the averages of the
        option `ema_decay` instead.

        Raises:
            FailedPreconditionError: The block takes a step, reads or loads the state, copies the
                optimizer, or calls `swapped()` again.
            InvalidArgumentError: On entry, `betas[0]` or `momentum` of a parameter is 0, so that
                its mean cannot be computed.
        """
        if not self._has_means:
            return super().swapped()  # pyright: ignore
        with importing:
            from thalweg.optim.swap_averages import swapped
        fractions = {
            id(param): number(group["betas"][0] if "betas" in group else group.get("momentum", 0))
            for group in self.param_groups
            for param in group["params"]
        }

        def mean_of(param: Tensor, entries: Any) -> Tensor | None:
            """Return the mean x of a parameter, or None if its state `entries` has none."""
            if "z" not in entries:
                return entries.get(EMA)
            fraction = fractions.get(id(param), 0.0)
            if not fraction:
                raise InvalidArgumentError(
                    "Where betas[0] or momentum is 0, parameters have lost the mean to evaluate."
                )
            var = entries.get(MASTER, param).detach()
            # Parameters are y = (1 - fraction) * z + fraction * x; this is solved for x.
            return torch.lerp(var, entries["z"].to(var.device, var.dtype), 1 - 1 / fraction).to(
                param.dtype
            )

        return swapped(self, mean_of)


class ScheduleFreeAdamW(Means, ModernOptimizer):
    """AdamW that needs no schedule: evaluate and save models in `with optimizer.swapped():`.

    Outside the block parameters are the point y of the gradients; inside, they are the mean x.

    Source: Defazio et al. 2024, https://arxiv.org/abs/2405.15682; schedulefree
    """

    _rule = "SCHEDULE_FREE_ADAMW"
    _unwrapped = _UNWRAPPED

    def _arguments(
        self,
        params: Params,
        lr: Rate = 0.0025,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
    ) -> None:
        """Do nothing; the signature declares the arguments of the constructor."""


class ScheduleFreeSGD(Means, ModernOptimizer):
    """SGD that needs no schedule: evaluate and save models in `with optimizer.swapped():`.

    Source: Defazio et al. 2024, https://arxiv.org/abs/2405.15682; schedulefree
    """

    _rule = "SCHEDULE_FREE_SGD"
    _unwrapped = _UNWRAPPED

    def _arguments(
        self,
        params: Params,
        lr: Rate = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
    ) -> None:
        """Do nothing; the signature declares the arguments of the constructor."""

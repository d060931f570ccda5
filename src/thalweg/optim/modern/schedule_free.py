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
from thalweg.optim.modern.arguments import Betas, Rate
from thalweg.optim.modern.optimizer import ModernOptimizer

_UNWRAPPED = "parameters go with the slot z, which a wrapper of their steps leaves behind"


class Means:
    """Mixin of the schedule-free classes: their means x can be swapped with the parameters."""

    param_groups: list[Group]
    step_cache: Any
    _has_means: bool = True

    def swapped(self) -> AbstractContextManager[None]:
        """Return a context manager for evaluation: in its block parameters have their means x as
        values.

        The end of the block restores the former values, also after an error. Parameters without a
        step keep their values. An optimizer without a schedule-free rule swaps in the averages of
        its option `ema_decay` instead.

        Raises:
            FailedPreconditionError: In the block, a method takes a step, reads or loads the state,
                copies the optimizer, or begins another such block of the same optimizer.
            InvalidArgumentError: When the block begins, `betas[0]` or `momentum` of a parameter is
                0, so that its mean cannot be computed.
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
            """Return the mean x of a parameter, from its state; None if it has none."""
            if "z" not in entries:
                return entries.get(EMA)
            fraction = fractions.get(id(param), 0.0)
            if not fraction:
                raise InvalidArgumentError(
                    "Where betas[0] or momentum is 0, parameters have lost the mean to evaluate."
                )
            var = entries.get(MASTER, param).detach()
            return torch.lerp(var, entries["z"].to(var.device, var.dtype), 1 - 1 / fraction).to(
                param.dtype
            )

        return swapped(self, mean_of)


class ScheduleFreeAdamW(Means, ModernOptimizer):
    """AdamW that needs no schedule: evaluate and save models in `with optimizer.swapped():`.

    Parameters are y, at which gradients are to be taken; in the block they are the mean x.

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
        """Define the arguments of the constructor."""


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
        """Define the arguments of the constructor."""

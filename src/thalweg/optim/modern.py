"""The rules of now in torch's form, with the arguments and defaults of their authors' classes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from thalweg.core.groups import Group
from thalweg.core.options.update_targets import MASTER
from thalweg.errors import FailedPreconditionError
from thalweg.formula import Rule
from thalweg.ground.locks import importing
from thalweg.optim.groups import number
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.rules import modern as rules

Rate = float | Tensor
Betas = tuple[Rate, Rate]
ThreeBetas = tuple[Rate, Rate, Rate]

__all__ = [
    "ADOPT",
    "AdEMAMix",
    "AdamH",
    "AdamWCautiousDecay",
    "AdamWCoupled",
    "AdamWDecoupled",
    "AdamWIndependent",
    "Adan",
    "CautiousAdamW",
    "LAMB",
    "LaProp",
    "NAdamW",
    "ScheduleFreeAdamW",
    "ScheduleFreeSGD",
    "StableAdamW",
]


class Arguments(torch.optim.Optimizer):
    """What the classes below have beneath them: groups of parameters, whose numbers are checked.

    Raises:
        ValueError: A number is negative, or a beta or momentum not below 1.
    """

    def __init__(self, params: Any, **defaults: Any) -> None:
        for name, value in defaults.items():
            numbers = value if isinstance(value, tuple) else (value,)
            is_share = name in ("betas", "momentum")
            if not all(each >= 0 and (each < 1 or not is_share) for each in numbers):
                raise ValueError(f"Invalid {name} value: {value}")
        super().__init__(params, defaults)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """What no engine takes has no step: a rule is written once.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            f"{type(self).__name__} takes steps on tensors of the CPU, and of GPUs for which there"
            " is an engine, without differentiable=True."
        )


class Means:
    """What the schedule-free classes have beside others: parameters that are their means x."""

    param_groups: list[Group]
    _own: Any

    def swapped(self) -> AbstractContextManager[None]:
        """Have parameters be their means in a `with` block, to evaluate or to save a model.

        A step and `state_dict` are refused in it: they go with parameters as they are outside.

        Raises:
            FailedPreconditionError: A step is taken inside, or the block is in another one.
        """
        with importing:
            from thalweg.optim.swapping import swapped
        shares = {
            id(param): number(group["betas"][0] if "betas" in group else group["momentum"])
            for group in self.param_groups
            for param in group["params"]
        }

        def mean_of(param: Tensor, own: Any) -> Tensor | None:
            share = shares.get(id(param), 0.0)
            if not share or "z" not in own:
                return None
            var = own.get(MASTER, param).detach()
            return torch.lerp(var, own["z"].to(var.dtype), 1 - 1 / share).to(param.dtype)

        return swapped(self, mean_of)

    def state_dict(self) -> dict[str, Any]:
        """As torch's.

        Raises:
            FailedPreconditionError: It is asked for inside of `swapped()`.
        """
        if self._own.is_swapped:
            raise FailedPreconditionError(
                "Inside of swapped() parameters are means, which this state does not go with: save"
                " it outside."
            )
        return super().state_dict()  # pyright: ignore


class AdamWCoupledArguments(Arguments):
    """What `AdamWCoupled` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class AdamWCoupled(FusedTorchOptimizer, AdamWCoupledArguments):
    """Adam, whose gradients have a share of the variable: the formula of `torch.optim.Adam`."""

    _torch = AdamWCoupledArguments
    _sparse = "AdamWCoupled does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.ADAMW_COUPLED


class AdamWDecoupledArguments(Arguments):
    """What `AdamWDecoupled` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class AdamWDecoupled(FusedTorchOptimizer, AdamWDecoupledArguments):
    """AdamW, whose variables shrink by lr times weight_decay, as those of `torch.optim.AdamW`."""

    _torch = AdamWDecoupledArguments
    _sparse = "AdamWDecoupled does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.ADAMW_DECOUPLED


class AdamWIndependentArguments(Arguments):
    """What `AdamWIndependent` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class AdamWIndependent(FusedTorchOptimizer, AdamWIndependentArguments):
    """AdamW, whose variables shrink by weight_decay, whatever the rate: give it a small one.

    Source: Wortsman et al. 2023, https://arxiv.org/abs/2309.14322
    """

    _torch = AdamWIndependentArguments
    _sparse = "AdamWIndependent does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.ADAMW_INDEPENDENT


class AdamWCautiousDecayArguments(Arguments):
    """What `AdamWCautiousDecay` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class AdamWCautiousDecay(FusedTorchOptimizer, AdamWCautiousDecayArguments):
    """AdamW, whose decay is left out where the step does not make an element smaller.

    Source: Chen et al. 2025, https://arxiv.org/abs/2510.12402
    """

    _torch = AdamWCautiousDecayArguments
    _sparse = "AdamWCautiousDecay does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.ADAMW_CAUTIOUS_DECAY


class NAdamWArguments(Arguments):
    """What `NAdamW` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class NAdamW(FusedTorchOptimizer, NAdamWArguments):
    """AdamW, whose step looks one gradient ahead.

    Source: Dozat 2016; timm.optim.NAdamW
    """

    _torch = NAdamWArguments
    _sparse = "NAdamW does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.NADAMW


class LaPropArguments(Arguments):
    """What `LaProp` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 4e-4,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-15,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class LaProp(FusedTorchOptimizer, LaPropArguments):
    """Momentum of gradients that were divided by their root first.

    Source: Ziyin et al. 2020, https://arxiv.org/abs/2002.04839; timm.optim.LaProp
    """

    _torch = LaPropArguments
    _sparse = "LaProp does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.LAPROP


class AdEMAMixArguments(Arguments):
    """What `AdEMAMix` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        betas: ThreeBetas = (0.9, 0.999, 0.9999),
        weight_decay: float = 0.0,
        alpha: float = 5.0,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, weight_decay=weight_decay, alpha=alpha, eps=eps
        )


class AdEMAMix(FusedTorchOptimizer, AdEMAMixArguments):
    """Adam with a second, slow mean of gradients; `alpha` is its weight, `betas[2]` what it keeps.

    Both have no schedule of their own: set those of the group where you warm them up.

    Source: Pagliardini et al. 2024, https://arxiv.org/abs/2409.03137
    """

    _torch = AdEMAMixArguments
    _sparse = "AdEMAMix does not support sparse gradients"
    _betas = 3

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.ADEMAMIX


class ADOPTArguments(Arguments):
    """What `ADOPT` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.9999),
        eps: float = 1e-6,
        clip_exp: float = 0.25,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            clip_exp=clip_exp,
            weight_decay=weight_decay,
            decoupled=decoupled,
        )


class ADOPT(FusedTorchOptimizer, ADOPTArguments):
    """Adam, whose gradients are divided by the root that was before them; the first step measures.

    What is divided is clipped to the number of the steps before to the power `clip_exp`, the
    authors' or timm's 0.333; with `decoupled` decay is AdamW's.

    Source: Taniguchi et al. 2024, https://arxiv.org/abs/2411.02853
    """

    _torch = ADOPTArguments
    _sparse = "ADOPT does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.ADOPT


class AdanArguments(Arguments):
    """What `Adan` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        betas: ThreeBetas = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        no_prox: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, no_prox=no_prox
        )


class Adan(FusedTorchOptimizer, AdanArguments):
    """Nesterov's momentum with a mean of the gradients' differences.

    `betas` are what is kept of the means of gradients, of differences and of squares. Variables are
    divided by 1 + lr * weight_decay after the step, or, with `no_prox`, shrink as AdamW's do.

    Source: Xie et al. 2022, https://arxiv.org/abs/2208.06677; timm.optim.Adan
    """

    _torch = AdanArguments
    _sparse = "Adan does not support sparse gradients"
    _betas = 3

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.ADAN


class CautiousAdamWArguments(Arguments):
    """What `CautiousAdamW` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class CautiousAdamW(FusedTorchOptimizer, CautiousAdamWArguments):
    """AdamW, whose elements do not move against their gradients, and the others the more.

    Source: Liang et al. 2024, https://arxiv.org/abs/2411.16085; timm.optim.AdamWLegacy
    """

    _torch = CautiousAdamWArguments
    _sparse = "CautiousAdamW does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.CAUTIOUS_ADAMW


class StableAdamWArguments(Arguments):
    """What `StableAdamW` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.99),
        weight_decay: float = 1e-2,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay, eps=eps)


class StableAdamW(FusedTorchOptimizer, StableAdamWArguments):
    """AdamW, whose rate is smaller for a parameter whose gradients outgrow their root.

    Source: Wortsman et al. 2023, https://arxiv.org/abs/2304.13013
    """

    _torch = StableAdamWArguments
    _sparse = "StableAdamW does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.STABLE_ADAMW


class LAMBArguments(Arguments):
    """What `LAMB` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        trust_clip: bool = False,
        always_adapt: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            trust_clip=trust_clip,
            always_adapt=always_adapt,
        )


class LAMB(FusedTorchOptimizer, LAMBArguments):
    """Adam, whose steps are as long as their parameters, times the rate.

    Parameters without decay take Adam's step, unless `always_adapt`; with `trust_clip` no step is
    longer than Adam's. Others clip the norm of gradients to 1 first: `clip_grad_norm=1.0`.

    Source: You et al. 2019, https://arxiv.org/abs/1904.00962; timm.optim.Lamb
    """

    _torch = LAMBArguments
    _sparse = "LAMB does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.LAMB


class AdamHArguments(Arguments):
    """What `AdamH` is given."""

    def __init__(
        self, params: Any, lr: Rate = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps)


class AdamH(FusedTorchOptimizer, AdamHArguments):
    """Adam on a sphere: a step is as long as its parameter, times the rate, and keeps its norm.

    A parameter of zeros takes Adam's step, and is on the sphere that this leads to from then on.

    Source: Hyperball, 2026, https://arxiv.org/abs/2606.16899
    """

    _torch = AdamHArguments
    _sparse = "AdamH does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.ADAMH


class ScheduleFreeAdamWArguments(Arguments):
    """What `ScheduleFreeAdamW` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 0.0025,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            warmup_steps=warmup_steps,
            r=r,
            weight_lr_power=weight_lr_power,
        )


class ScheduleFreeAdamW(Means, FusedTorchOptimizer, ScheduleFreeAdamWArguments):
    """AdamW that needs no schedule: evaluate and save models in `with optimizer.swapped():`.

    Parameters are y, at which gradients are to be taken; in the block they are the mean x.

    Source: Defazio et al. 2024, https://arxiv.org/abs/2405.15682; schedulefree
    """

    _torch = ScheduleFreeAdamWArguments
    _sparse = "ScheduleFreeAdamW does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.SCHEDULE_FREE_ADAMW


class ScheduleFreeSGDArguments(Arguments):
    """What `ScheduleFreeSGD` is given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            warmup_steps=warmup_steps,
            r=r,
            weight_lr_power=weight_lr_power,
        )


class ScheduleFreeSGD(Means, FusedTorchOptimizer, ScheduleFreeSGDArguments):
    """SGD that needs no schedule: evaluate and save models in `with optimizer.swapped():`.

    Source: Defazio et al. 2024, https://arxiv.org/abs/2405.15682; schedulefree
    """

    _torch = ScheduleFreeSGDArguments
    _sparse = "ScheduleFreeSGD does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.SCHEDULE_FREE_SGD

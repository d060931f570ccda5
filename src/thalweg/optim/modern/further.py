"""Rules beside AdamW's, with the arguments and defaults of their authors' classes."""

from __future__ import annotations

from typing import Any

from thalweg.core.groups import Group
from thalweg.formula import Rule
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.optim.modern.arguments import Arguments, Betas, Rate, ThreeBetas
from thalweg.rules import modern as rules


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
        alpha_warmup: float = 0,
        beta3_warmup: float = 0,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            weight_decay=weight_decay,
            alpha=alpha,
            eps=eps,
            alpha_warmup=alpha_warmup,
            beta3_warmup=beta3_warmup,
        )


class AdEMAMix(FusedTorchOptimizer, AdEMAMixArguments):
    """Adam with a second, slow mean of gradients; `alpha` is its weight, `betas[2]` what it keeps.

    In the first `alpha_warmup` steps of a parameter `alpha` rises from 0, and in the first
    `beta3_warmup` `betas[2]` from `betas[0]`. The authors warm both up over all of a training.

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

    Its norm before the first step is kept in its state, as `radius`. A parameter that begins at 0
    has no sphere: it takes Adam's steps, of which a warning tells.

    Source: Hyperball, 2026, https://arxiv.org/abs/2606.16899
    """

    _torch = AdamHArguments
    _sparse = "AdamH does not support sparse gradients"
    _without = ("radius", "is 0 and has no sphere, so AdamH takes Adam's steps with it.")

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.ADAMH

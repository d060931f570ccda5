"""AdamW's kin, with the arguments and defaults of their authors' classes."""

from __future__ import annotations

from typing import Any

from thalweg.core.groups import Group
from thalweg.formula import Rule
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.optim.modern.arguments import Arguments, Betas, Rate
from thalweg.rules import modern as rules


class AdamWArguments(Arguments):
    """What most of these are given."""

    def __init__(
        self,
        params: Any,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class AdamWCoupled(FusedTorchOptimizer, AdamWArguments):
    """Adam, whose gradients have a share of the variable: the formula of `torch.optim.Adam`."""

    _torch = AdamWArguments
    _sparse = "AdamWCoupled does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.ADAMW_COUPLED


class AdamWDecoupled(FusedTorchOptimizer, AdamWArguments):
    """AdamW, whose variables shrink by lr times weight_decay, as those of `torch.optim.AdamW`."""

    _torch = AdamWArguments
    _sparse = "AdamWDecoupled does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.ADAMW_DECOUPLED


class AdamWIndependent(FusedTorchOptimizer, AdamWArguments):
    """AdamW, whose variables shrink by weight_decay, whatever the rate: give it a small one.

    Source: Wortsman et al. 2023, https://arxiv.org/abs/2309.14322
    """

    _torch = AdamWArguments
    _sparse = "AdamWIndependent does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.ADAMW_INDEPENDENT


class AdamWCautiousDecay(FusedTorchOptimizer, AdamWArguments):
    """AdamW, whose decay is left out where the step does not make an element smaller.

    Source: Chen et al. 2025, https://arxiv.org/abs/2510.12402
    """

    _torch = AdamWArguments
    _sparse = "AdamWCautiousDecay does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.ADAMW_CAUTIOUS_DECAY


class NAdamW(FusedTorchOptimizer, AdamWArguments):
    """AdamW, whose step looks one gradient ahead.

    Source: Dozat 2016; timm.optim.NAdamW
    """

    _torch = AdamWArguments
    _sparse = "NAdamW does not support sparse gradients"

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        return rules.NADAMW


class CautiousAdamW(FusedTorchOptimizer, AdamWArguments):
    """AdamW, whose elements do not move against their gradients, and the others the more.

    Source: Liang et al. 2024, https://arxiv.org/abs/2411.16085; timm.optim.AdamWLegacy
    """

    _torch = AdamWArguments
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

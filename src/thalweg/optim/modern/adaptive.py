"""LaProp, AdEMAMix, ADOPT, Adan, LAMB, AdamH and SM3."""

from __future__ import annotations

from torch import Tensor

from thalweg._core.param_groups import Group, Params
from thalweg.formula import Rule
from thalweg.optim.modern.arguments import Betas, Rate, ThreeBetas
from thalweg.optim.modern.optimizer import ModernOptimizer
from thalweg.rules.modern.sm3 import sm3


class LaProp(ModernOptimizer):
    """Momentum of gradients that were divided by their root first.

    Decay is times the rate, as in timm; the decay of the authors' code is not.

    Source: Ziyin et al. 2020, https://arxiv.org/abs/2002.04839; timm.optim.LaProp
    """

    _rule = "LAPROP"

    def _arguments(
        self,
        params: Params,
        lr: Rate = 4e-4,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-15,
        weight_decay: float = 0.0,
    ) -> None:
        """Define the arguments of the constructor."""


class AdEMAMix(ModernOptimizer):
    """Adam with a second, slow mean of gradients, with the weight `alpha` and the decay `betas[2]`.

    In the first `alpha_warmup` steps of a parameter `alpha` rises from 0, and in the first
    `beta3_warmup` `betas[2]` from `betas[0]`. The authors warm both up over all of a training, and
    their class has `alpha=2`.

    Args:
        betas: Shares of the means that a step keeps: the fast mean of gradients, the mean of
            squares, the slow mean of gradients.
        alpha: The weight of the slow mean.
        alpha_warmup: In how many steps `alpha` rises from 0; 0 is none.
        beta3_warmup: In how many steps `betas[2]` rises from `betas[0]`; 0 is none.

    Source: Pagliardini et al. 2024, https://arxiv.org/abs/2409.03137
    """

    _rule = "ADEMAMIX"
    _betas = 3

    def _arguments(
        self,
        params: Params,
        lr: Rate = 1e-3,
        betas: ThreeBetas = (0.9, 0.999, 0.9999),
        weight_decay: float = 0.0,
        alpha: float = 5.0,
        eps: float = 1e-8,
        alpha_warmup: float = 0,
        beta3_warmup: float = 0,
    ) -> None:
        """Define the arguments of the constructor."""


class ADOPT(ModernOptimizer):
    """Adam with gradients divided by the root of the step before; the first step only measures.

    The quotient is clipped to the number of earlier steps to the power `clip_exp`, the authors' or
    timm's 0.333; with `decoupled` decay is AdamW's.

    Args:
        clip_exp: The power of the number of earlier steps, to which the quotient is clipped.
        decoupled: True if decay is AdamW's, beside the step.

    Source: Taniguchi et al. 2024, https://arxiv.org/abs/2411.02853
    """

    _rule = "ADOPT"

    def _arguments(
        self,
        params: Params,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.9999),
        eps: float = 1e-6,
        clip_exp: float = 0.25,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        """Define the arguments of the constructor."""


class Adan(ModernOptimizer):
    """Nesterov's momentum with a mean of the differences of gradients.

    Variables are divided by 1 + lr * weight_decay after the step, or, with `no_prox`, shrink as
    AdamW's do.

    Args:
        betas: Shares of the means of gradients, of their differences and of squares that a step
            keeps.
        no_prox: True if decay is AdamW's.

    Source: Xie et al. 2022, https://arxiv.org/abs/2208.06677; timm.optim.Adan
    """

    _rule = "ADAN"
    _betas = 3

    def _arguments(
        self,
        params: Params,
        lr: Rate = 1e-3,
        betas: ThreeBetas = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        no_prox: bool = False,
    ) -> None:
        """Define the arguments of the constructor."""


class LAMB(ModernOptimizer):
    """Adam with steps as long as their parameters, times the rate.

    Parameters without decay take Adam's step, unless `always_adapt`; with `trust_clip` no step is
    longer than Adam's. Others clip the norm of gradients to 1 first: `clip_grad_norm=1.0`.

    Args:
        trust_clip: True if no step is longer than Adam's.
        always_adapt: True if parameters without decay take such steps, too.

    Source: You et al. 2019, https://arxiv.org/abs/1904.00962; timm.optim.Lamb
    """

    _rule = "LAMB"

    def _arguments(
        self,
        params: Params,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        trust_clip: bool = False,
        always_adapt: bool = False,
    ) -> None:
        """Define the arguments of the constructor."""


class AdamH(ModernOptimizer):
    """Adam on a sphere: a step is as long as its parameter, times the rate, and keeps its norm.

    Its norm before the first step is kept in its state, as `radius`. A parameter that begins at 0
    has no sphere: it takes Adam's steps, of which a warning tells.

    Source: Hyperball, 2026, https://arxiv.org/abs/2606.16899
    """

    _rule = "ADAMH"
    _zero_warning = ("radius", "is 0 and has no sphere, so AdamH takes Adam's steps with it.")

    def _arguments(
        self, params: Params, lr: Rate = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        """Define the arguments of the constructor."""


class SM3(ModernOptimizer):
    """Adagrad with the smaller of a row sum and a column sum for each matrix element.

    `state[p]` holds `accumulator_0`, of rows, and `accumulator_1`, of columns, of the parameter's
    shape with 1 in place of the last dimension, or the last but one; parameters of fewer than two
    dimensions have a sum for each element, `accumulator_0`. With `momentum` there is a
    `momentum_buffer`. With `beta` sums are running means, and no smaller than before.

    Args:
        beta: Share of the sums that a step keeps, which makes them running means; 0 keeps sums.

    Source: Anil et al. 2019, https://arxiv.org/abs/1901.11150; pytorch_optimizer.SM3
    """

    _rule = "SM3"
    _counts = False
    _unsupported_options = {
        "state_storage": "has no slots that state_storage may encode: its sums are of rows and"
        " columns, or grow and grow, and its momentum is updated beside them"
    }

    @staticmethod
    def _rule_by_shape(group: Group, param: Tensor) -> Rule:
        return sm3(has_mean=bool(group["momentum"]), is_vector=param.dim() < 2)

    def _arguments(
        self,
        params: Params,
        lr: Rate = 0.1,
        momentum: float = 0.0,
        beta: float = 0.0,
        eps: float = 1e-30,
    ) -> None:
        """Define the arguments of the constructor."""

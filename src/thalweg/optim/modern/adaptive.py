"""LaProp, AdEMAMix, ADOPT, Adan, LAMB, AdamH and SM3."""

from __future__ import annotations

from torch import Tensor

from thalweg._core.param_groups import Group, Params
from thalweg.formula import Rule
from thalweg.optim.modern.optimizer import Betas, ModernOptimizer, Rate, ThreeBetas
from thalweg.rules.modern.sm3 import sm3


class LaProp(ModernOptimizer):
    """Momentum of gradients that are first divided by their running root mean square.

    Decay is multiplied by the rate as in timm, unlike in the authors' code.

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
        """Do nothing; the signature declares the arguments of the constructor."""


class AdEMAMix(ModernOptimizer):
    """Adam plus `alpha` times a second, slow mean of gradients, whose decay is `betas[2]`.

    The authors warm up `alpha` and `betas[2]` over all of a training; their class has `alpha=2`.

    Args:
        betas: The fractions that a step keeps of the fast mean of gradients, of the mean of
            squares, and of the slow mean of gradients.
        alpha: The weight of the slow mean.
        alpha_warmup: The number of steps of a parameter in which `alpha` rises from 0; 0 for none.
        beta3_warmup: The number of steps in which `betas[2]` rises from `betas[0]`; 0 for none.

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
        """Do nothing; the signature declares the arguments of the constructor."""


class ADOPT(ModernOptimizer):
    """Adam with gradients divided by the root mean square of earlier gradients.

    The first step computes this root mean square and leaves the parameters unchanged.

    After n steps the quotient is clipped to n ** clip_exp; timm's default is 0.333.

    Args:
        clip_exp: The power of the number of earlier steps to which the quotient is clipped.
        decoupled: True for decoupled decay as in AdamW.

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
        """Do nothing; the signature declares the arguments of the constructor."""


class Adan(ModernOptimizer):
    """Nesterov's momentum with a mean of the differences of gradients.

    After the step, parameters are divided by 1 + lr * weight_decay.

    Args:
        betas: The fractions that a step keeps of the means of gradients, of differences and of
            squares.
        no_prox: True for decay as in AdamW instead of the division.

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
        """Do nothing; the signature declares the arguments of the constructor."""


class LAMB(ModernOptimizer):
    """Adam whose steps have the norm of their parameter, times the learning rate.

    Parameters without decay take Adam's step, unless `always_adapt` is True. Other implementations
    first clip the norm of gradients to 1; here `clip_grad_norm=1.0` does.

    Args:
        trust_clip: True to limit the length of a step to that of Adam's step.
        always_adapt: True to scale the steps of parameters without decay, too.

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
        """Do nothing; the signature declares the arguments of the constructor."""


class AdamH(ModernOptimizer):
    """Adam on a sphere: a step has the parameter's norm times the rate; norms do not change.

    The state keeps the norm before the first step as `radius`. A parameter that starts at 0 takes
    Adam's steps, with a warning.

    Source: Hyperball, 2026, https://arxiv.org/abs/2606.16899
    """

    _rule = "ADAMH"
    _zero_warning = ("radius", "is 0 and has no sphere, so AdamH takes Adam's steps with it.")

    def _arguments(
        self, params: Params, lr: Rate = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        """Do nothing; the signature declares the arguments of the constructor."""


class SM3(ModernOptimizer):
    """Adagrad with sums per row and per column; a matrix element uses the smaller of its two sums.

    `state[p]` of a matrix holds `accumulator_0` with row sums and `accumulator_1` with column sums:
    the parameter's shape with 1 in place of the last dimension, or the last but one. A parameter of
    fewer than two dimensions has `accumulator_0` with a sum per element. With `momentum`,
    `state[p]` also holds `momentum_buffer`. With `beta`, sums are running means that do not
    decrease.

    Args:
        beta: The fraction of the sums that a step keeps; 0 keeps plain sums.

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
        """Do nothing; the signature declares the arguments of the constructor."""

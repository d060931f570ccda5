"""Momentum with decoupled weight decay."""

from __future__ import annotations

from thalweg.formula import Rule
from thalweg.rules import MOMENTUM_W, NESTEROV_W
from thalweg.v1.contrib.opt.weight_decay import DecoupledWeightDecayExtension
from thalweg.v1.train.momentum import MomentumOptimizer


class MomentumWOptimizer(DecoupledWeightDecayExtension, MomentumOptimizer):
    """Momentum with decoupled weight decay.

        var <- var - weight_decay var, and then the step of `MomentumOptimizer`

    Decay and step are one fused pass. A sparse gradient decays and moves only its rows.

    Args:
        weight_decay: Fraction of a variable subtracted in each step, not scaled by the learning
            rate. A float, 0-d tensor, or callable without arguments.
        learning_rate, momentum, use_locking, name, use_nesterov: As in `MomentumOptimizer`.

    Differs from:
        torch.optim.SGD adds its weight_decay to the gradient.

    Reference: tf.contrib.opt.MomentumWOptimizer; https://arxiv.org/abs/1711.05101
    """

    FUSED = True

    def __init__(
        self,
        weight_decay: object,
        learning_rate: object,
        momentum: object,
        use_locking: bool = False,
        name: str = "MomentumW",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(weight_decay, learning_rate, momentum, use_locking, name, use_nesterov)

    def _choose_rule(self) -> Rule:
        return NESTEROV_W if self._use_nesterov else MOMENTUM_W

"""Adam with decoupled weight decay."""

from __future__ import annotations

from thalweg.formula import Rule
from thalweg.rules import ADAM_W
from thalweg.v1.contrib.opt.weight_decay import DecoupledWeightDecayExtension
from thalweg.v1.train.adam import AdamOptimizer


class AdamWOptimizer(DecoupledWeightDecayExtension, AdamOptimizer):
    """Adam with decoupled weight decay.

        var <- var - weight_decay var, and then the step of `AdamOptimizer`

    Decay and step are one fused pass. A sparse gradient decays only its rows, and moves all rows as
    `AdamOptimizer` does.

    Args:
        weight_decay: Fraction of a variable subtracted in each step, not scaled by the learning
            rate. A float, 0-d tensor, or callable without arguments.
        learning_rate, beta1, beta2, epsilon, use_locking, name: As in `AdamOptimizer`.

    Differs from:
        torch.optim.AdamW multiplies the decay by the learning rate and adds epsilon after bias
        correction.

    Reference: tf.contrib.opt.AdamWOptimizer; https://arxiv.org/abs/1711.05101
    """

    FUSED = True

    def __init__(
        self,
        weight_decay: object,
        learning_rate: object = 0.001,
        beta1: object = 0.9,
        beta2: object = 0.999,
        epsilon: object = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(weight_decay, learning_rate, beta1, beta2, epsilon, use_locking, name)

    def _choose_rule(self) -> Rule:
        return ADAM_W

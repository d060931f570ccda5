"""Adam scaled by the largest gradient."""

from __future__ import annotations

from typing import Any

from thalweg.formula import Rule
from thalweg.rules import ADAMAX_V1
from thalweg.v1.train.adam import AdamOptimizer


class AdaMaxOptimizer(AdamOptimizer):
    """AdaMax.

        m <- m + (g - m)(1 - beta1);  v <- max(beta2 v, |g|)
        var <- var - learning_rate / (1 - beta1_power) m / (v + epsilon)
        beta1_power <- beta1_power beta1

    A sparse gradient changes only its rows, unlike in `AdamOptimizer`.

    Args:
        learning_rate, beta1, beta2, epsilon, use_locking, name: As in `AdamOptimizer`.

    Differs from:
        torch.optim.Adamax adds epsilon to `|g|` inside the maximum and has learning rate 0.002.

    Reference: tf.contrib.opt.AdaMaxOptimizer; https://arxiv.org/abs/1412.6980, section 7.1
    """

    POWERS = {"beta1_power": "beta1"}

    def __init__(
        self,
        learning_rate: object = 0.001,
        beta1: object = 0.9,
        beta2: object = 0.999,
        epsilon: object = 1e-8,
        use_locking: bool = False,
        name: str = "AdaMax",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)

    def _get_beta_accumulators(self) -> Any:
        """Return the variable beta1_power in a tuple."""
        return super()._get_beta_accumulators()[0]

    def _choose_rule(self) -> Rule:
        return ADAMAX_V1

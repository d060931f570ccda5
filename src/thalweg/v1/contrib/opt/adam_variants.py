"""Variants of Adam: LazyAdam, Nadam and AdaMax."""

from __future__ import annotations

from typing import Any

from thalweg.formula import Rule
from thalweg.rules import ADAMAX_V1, LAZY_ADAM, NESTEROV_ADAM
from thalweg.v1.train.adam import AdamOptimizer


class LazyAdamOptimizer(AdamOptimizer):
    """Adam that updates only the rows of a sparse gradient.

    A dense gradient is applied as by `AdamOptimizer`. A sparse gradient decays m and v of its rows
    and moves these rows only. beta1_power and beta2_power count all steps, including steps in which
    a row had no gradient.

    Args:
        learning_rate, beta1, beta2, epsilon, use_locking, name: As in `AdamOptimizer`.

    Differs from:
        torch.optim.SparseAdam adds epsilon after bias correction.

    Reference: tf.contrib.opt.LazyAdamOptimizer
    """

    def _choose_rule(self) -> Rule:
        return LAZY_ADAM


class NadamOptimizer(AdamOptimizer):
    """Adam with Nesterov momentum.

        alpha = learning_rate sqrt(1 - beta2_power) / (1 - beta1_power)
        m <- m + (g - m)(1 - beta1);  v <- v + (g^2 - v)(1 - beta2)
        var <- var - alpha (beta1 m + (1 - beta1) g) / (sqrt(v) + epsilon)

    A sparse gradient decays m and v of all rows, and moves only its rows.

    Args:
        learning_rate, beta1, beta2, epsilon, use_locking, name: As in `AdamOptimizer`; the default
            name is "Adam", as in TensorFlow.

    Differs from:
        Keras' Nadam and torch.optim.NAdam have a schedule of the momentum.

    Reference: tf.contrib.opt.NadamOptimizer; Dozat 2015
    """

    def _choose_rule(self) -> Rule:
        return NESTEROV_ADAM


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

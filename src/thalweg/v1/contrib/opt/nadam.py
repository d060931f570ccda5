"""Adam with Nesterov momentum."""

from __future__ import annotations

from thalweg.formula import Rule
from thalweg.rules import NESTEROV_ADAM
from thalweg.v1.train.adam import AdamOptimizer


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

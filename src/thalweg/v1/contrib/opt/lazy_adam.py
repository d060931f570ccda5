"""Adam that updates only the rows of a sparse gradient."""

from __future__ import annotations

from thalweg.formula import Rule
from thalweg.rules import LAZY_ADAM
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

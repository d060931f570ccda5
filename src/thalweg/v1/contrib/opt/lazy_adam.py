"""Adam without a step of untouched rows."""

from __future__ import annotations

from thalweg.formula import Rule
from thalweg.rules import LAZY_ADAM
from thalweg.v1.train.adam import AdamOptimizer


class LazyAdamOptimizer(AdamOptimizer):
    """Adam whose sparse gradients touch the rows they name, and no others.

    A dense gradient gives the step of `AdamOptimizer`. A sparse one decays m and v of its own rows
    and moves these: a step costs what the rows cost, not what the table costs. beta1_power and
    beta2_power count all steps, so that a row seen late is corrected for bias as if it had been
    there from the start.

    Args:
        learning_rate, beta1, beta2, epsilon, use_locking, name: As in `AdamOptimizer`.

    Differs from:
        torch.optim.SparseAdam adds epsilon after bias correction.

    Reference: tf.contrib.opt.LazyAdamOptimizer
    """

    def _choose_rule(self) -> Rule:
        return LAZY_ADAM

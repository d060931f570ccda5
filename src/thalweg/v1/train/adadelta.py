"""Adadelta."""

from __future__ import annotations

from thalweg.formula import Rule
from thalweg.rules import ADADELTA_V1
from thalweg.v1.train.rule_optimizer import RuleOptimizer, check_hyper


class AdadeltaOptimizer(RuleOptimizer):
    """Adadelta.

        accum <- rho accum + (1 - rho) g^2
        u = sqrt(accum_update + epsilon) / sqrt(accum + epsilon) g
        var <- var - learning_rate u;  accum_update <- rho accum_update + (1 - rho) u^2

    A sparse gradient changes only its rows.

    Args:
        learning_rate: A float, 0-d tensor, or callable without arguments.
        rho: Decay rate of the running averages. A float, tensor or callable.
        epsilon: Added inside the roots. A float, tensor or callable.
        use_locking, name: See `Optimizer`.

    Differs from:
        torch.optim.Adadelta has learning rate 1.0, rho 0.9 and epsilon 1e-6 by default.

    Reference: tf.compat.v1.train.AdadeltaOptimizer; Zeiler 2012
    """

    HYPERS = {"learning_rate": "_lr", "rho": "_rho", "epsilon": "_epsilon"}
    TENSORS = {f"{attribute}_t": name for name, attribute in HYPERS.items()}

    def __init__(
        self,
        learning_rate: object = 0.001,
        rho: object = 0.95,
        epsilon: object = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        super().__init__(use_locking, name)
        self._lr = check_hyper("learning_rate", learning_rate)
        self._rho, self._epsilon = rho, epsilon

    def _choose_rule(self) -> Rule:
        return ADADELTA_V1

"""Momentum, with the learning rate outside of the velocity."""

from __future__ import annotations

from thalweg.formula import Rule
from thalweg.rules import HEAVY_BALL, NESTEROV_BALL
from thalweg.v1.train.rule_optimizer import RuleOptimizer, check_hyper


class MomentumOptimizer(RuleOptimizer):
    """Momentum.

        a <- momentum a + g;  var <- var - learning_rate a
        use_nesterov: var <- var - (learning_rate g + learning_rate momentum a)

    A sparse gradient changes only its rows of the variable and the velocity.

    Args:
        learning_rate: A float, 0-d tensor, or callable without arguments.
        momentum: Decay rate of the velocity. A float, tensor or callable.
        use_locking, name: See `Optimizer`.
        use_nesterov: True for Nesterov momentum.

    Differs from:
        Keras' SGD has the learning rate inside of the velocity.

    Example:
        >>> from thalweg import Variable
        >>> w = Variable(1.0, name="w")
        >>> MomentumOptimizer(0.1, 0.9).minimize(lambda: 2 * w)
        >>> w.numpy()
        np.float32(0.8)

    Reference: tf.compat.v1.train.MomentumOptimizer
    """

    HYPERS = {"learning_rate": "_learning_rate", "momentum": "_momentum"}
    TENSORS = {f"{attribute}_tensor": name for name, attribute in HYPERS.items()}

    def __init__(
        self,
        learning_rate: object,
        momentum: object,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = check_hyper("learning_rate", learning_rate)
        self._momentum, self._use_nesterov = momentum, use_nesterov

    def _choose_rule(self) -> Rule:
        return NESTEROV_BALL if self._use_nesterov else HEAVY_BALL

"""Gradient descent."""

from __future__ import annotations

from thalweg.formula import Rule
from thalweg.rules import SGD
from thalweg.v1.train.rule_optimizer import RuleOptimizer, check_hyper


class GradientDescentOptimizer(RuleOptimizer):
    """Gradient descent.

        var <- var - learning_rate g

    Args:
        learning_rate: A float, 0-d tensor, or callable without arguments.
        use_locking, name: See `Optimizer`.

    Example:
        >>> from thalweg import Variable
        >>> w = Variable([1.0, 2.0], name="w")
        >>> GradientDescentOptimizer(3.0).minimize(lambda: 5 * w.sum(), var_list=[w])
        >>> w.numpy()
        array([-14., -13.], dtype=float32)

    Reference: tf.compat.v1.train.GradientDescentOptimizer
    """

    HYPERS = {"learning_rate": "_learning_rate"}
    TENSORS = {"_learning_rate_tensor": "learning_rate"}

    def __init__(
        self, learning_rate: object, use_locking: bool = False, name: str = "GradientDescent"
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = check_hyper("learning_rate", learning_rate)

    def _choose_rule(self) -> Rule:
        return SGD

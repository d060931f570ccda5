"""Gradient descent with a proximal step."""

from __future__ import annotations

from thalweg.formula import Rule
from thalweg.rules import PROXIMAL_GRADIENT_DESCENT
from thalweg.v1.train.rule_optimizer import RuleOptimizer, check_hyper


class ProximalGradientDescentOptimizer(RuleOptimizer):
    """Gradient descent with a proximal step.

        w = var - learning_rate g
        l1 > 0: w <- sign(w) max(|w| - learning_rate l1, 0)
        var <- w / (1 + l2 learning_rate)

    A sparse gradient changes only its rows.

    Args:
        learning_rate: A float or 0-d tensor.
        l1_regularization_strength: A float or 0-d tensor.
        l2_regularization_strength: A float or 0-d tensor.
        use_locking, name: See `Optimizer`.

    Raises:
        ValueError: `learning_rate` is a callable (at the first step).

    Differs from:
        TensorFlow accepts Python floats for float32 variables only; here they are cast.

    Reference: tf.compat.v1.train.ProximalGradientDescentOptimizer; Duchi & Singer 2009
    """

    HYPERS = {
        "learning_rate": "_learning_rate",
        "l1": "_l1_regularization_strength",
        "l2": "_l2_regularization_strength",
    }
    TENSORS = {f"{attribute}_tensor": name for name, attribute in HYPERS.items()}
    CALLABLES = False

    def __init__(
        self,
        learning_rate: object,
        l1_regularization_strength: object = 0.0,
        l2_regularization_strength: object = 0.0,
        use_locking: bool = False,
        name: str = "ProximalGradientDescent",
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = check_hyper("learning_rate", learning_rate)
        self._l1_regularization_strength = l1_regularization_strength
        self._l2_regularization_strength = l2_regularization_strength

    def _choose_rule(self) -> Rule:
        return PROXIMAL_GRADIENT_DESCENT

"""Adagrad with a proximal step."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from thalweg._core.hyperparameters import as_number
from thalweg._core.step_adapter import Dtype
from thalweg.formula import Rule
from thalweg.rules import PROXIMAL_ADAGRAD
from thalweg.v1.argument_checks import check_positive, check_step_size
from thalweg.v1.train.proximal_gradient_descent import ProximalGradientDescentOptimizer
from thalweg.v1.train.rule_optimizer import RuleOptimizer, check_hyper
from thalweg.v1.train.step_adapter import Values


class ProximalAdagradOptimizer(RuleOptimizer):
    """Adagrad with a proximal step.

        acc <- acc + g^2;  eta = learning_rate / sqrt(acc);  w = var - eta g
        l1 > 0: w <- sign(w) max(|w| - eta l1, 0)
        var <- w / (1 + l2 eta)

    A sparse gradient changes only its rows.

    Args:
        learning_rate: A float or 0-d tensor, above 0.
        initial_accumulator_value: Initial value of the accumulator; above 0.
        l1_regularization_strength: 0 or more.
        l2_regularization_strength: 0 or more.
        use_locking, name: See `Optimizer`.

    Raises:
        ValueError: `initial_accumulator_value` is not above 0, or `learning_rate` is a callable (at
            the first step).
        InvalidArgumentError: At a step with a learning rate or regularization out of range.

    Differs from:
        TensorFlow accepts Python floats for float32 variables only; here they are cast.

    Reference: tf.compat.v1.train.ProximalAdagradOptimizer; Duchi & Singer 2009
    """

    HYPERS = ProximalGradientDescentOptimizer.HYPERS
    TENSORS = ProximalGradientDescentOptimizer.TENSORS
    CALLABLES = False

    def __init__(
        self,
        learning_rate: object,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "ProximalAdagrad",
    ) -> None:
        initial = as_number("initial_accumulator_value", initial_accumulator_value)
        check_positive("initial_accumulator_value", initial)
        super().__init__(use_locking, name)
        self._learning_rate = check_hyper("learning_rate", learning_rate)
        self._initial_accumulator_value = initial
        self._l1_regularization_strength = l1_regularization_strength
        self._l2_regularization_strength = l2_regularization_strength

    def _choose_rule(self) -> Rule:
        return PROXIMAL_ADAGRAD

    def _slot_fills(self) -> Iterable[tuple[str, float, str]]:
        return [("accumulator", self._initial_accumulator_value, self._name)]

    def _hyper_scalars(self, values: Values, dtype: Dtype, group: Hashable) -> Values:
        check_step_size("learning_rate", values["learning_rate"])
        check_step_size("l1_regularization_strength", values["l1"], zero=True)
        check_step_size("l2_regularization_strength", values["l2"], zero=True)
        return super()._hyper_scalars(values, dtype, group)

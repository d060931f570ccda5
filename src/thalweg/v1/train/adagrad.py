"""Adagrad."""

from __future__ import annotations

from collections.abc import Iterable

from thalweg._core.hyperparameters import as_number
from thalweg.formula import Rule
from thalweg.rules import ADAGRAD_V1
from thalweg.v1.argument_checks import check_positive
from thalweg.v1.train.rule_optimizer import RuleOptimizer, check_hyper


class AdagradOptimizer(RuleOptimizer):
    """Adagrad, without an epsilon.

        acc <- acc + g^2;  var <- var - learning_rate g / sqrt(acc)

    A sparse gradient changes only its rows.

    Args:
        learning_rate: A float, 0-d tensor, or callable without arguments.
        initial_accumulator_value: Initial value of the accumulator; above 0.
        use_locking, name: See `Optimizer`.

    Raises:
        ValueError: `initial_accumulator_value` is not above 0.

    Differs from:
        torch.optim.Adagrad starts the accumulator at 0 and adds 1e-10 to the root.

    Reference: tf.compat.v1.train.AdagradOptimizer; Duchi et al. 2011
    """

    HYPERS = {"learning_rate": "_learning_rate"}
    TENSORS = {"_learning_rate_tensor": "learning_rate"}

    def __init__(
        self,
        learning_rate: object,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        initial = as_number("initial_accumulator_value", initial_accumulator_value)
        check_positive("initial_accumulator_value", initial)
        super().__init__(use_locking, name)
        self._learning_rate = check_hyper("learning_rate", learning_rate)
        self._initial_accumulator_value = initial

    def _choose_rule(self) -> Rule:
        return ADAGRAD_V1

    def _slot_fills(self) -> Iterable[tuple[str, float, str]]:
        return [("accumulator", self._initial_accumulator_value, self._name)]

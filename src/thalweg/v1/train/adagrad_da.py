"""Adagrad with dual averaging."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import Tensor

from thalweg._base.device_counters import number_of
from thalweg._base.showing import show_value
from thalweg._core.hyperparameters import as_number
from thalweg._core.step_adapter import Dtype
from thalweg._graph import is_symbolic, resolve
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.formula import Rule
from thalweg.rules import ADAGRAD_DA
from thalweg.v1.argument_checks import check_positive
from thalweg.v1.train.proximal_gradient_descent import ProximalGradientDescentOptimizer
from thalweg.v1.train.rule_optimizer import RuleOptimizer, check_hyper
from thalweg.v1.train.step_adapter import Values


class AdagradDAOptimizer(RuleOptimizer):
    """Adagrad with dual averaging, for sparse linear models.

        t = global_step + 1;  G <- G + g;  GG <- GG + g^2
        l1 > 0: var <- -learning_rate sign(G) max(|G| - l1 t, 0) / (l2 t learning_rate + sqrt(GG))
        else:   var <- -learning_rate G / (l2 t learning_rate + sqrt(GG))

    The variable is computed from G, so the first step overwrites its initial value. A sparse
    gradient changes only its rows.

    Args:
        learning_rate: A float or 0-d tensor.
        global_step: The int64 variable that counts steps. The optimizer only reads it;
            `minimize(global_step=...)` increments it.
        initial_gradient_squared_accumulator_value: Initial value of GG; above 0.
        l1_regularization_strength: 0 or more.
        l2_regularization_strength: 0 or more.
        use_locking, name: See `Optimizer`.

    Raises:
        ValueError: The initial value is not above 0, or `learning_rate` is a callable (at the first
            step).
        InvalidArgumentError: `global_step` is not an int64 scalar.

    Reference: tf.compat.v1.train.AdagradDAOptimizer; Duchi et al. 2011
    """

    HYPERS = ProximalGradientDescentOptimizer.HYPERS
    TENSORS = {"_learning_rate_tensor": "learning_rate"}
    CALLABLES = False

    def __init__(
        self,
        learning_rate: object,
        global_step: Any,
        initial_gradient_squared_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "AdagradDA",
    ) -> None:
        name_of_initial = "initial_gradient_squared_accumulator_value"
        initial = as_number(name_of_initial, initial_gradient_squared_accumulator_value)
        check_positive(name_of_initial, initial)
        if not isinstance(global_step, Tensor) and not is_symbolic(global_step):
            raise InvalidTypeError(
                f"global_step must be a variable, not {show_value(global_step)}."
            )
        if global_step.dtype != torch.int64 or tuple(global_step.shape) != ():
            raise InvalidArgumentError(
                f"global_step must be an int64 scalar, not {global_step.dtype} of shape"
                f" {tuple(global_step.shape)}."
            )
        super().__init__(use_locking, name)
        self._learning_rate = check_hyper("learning_rate", learning_rate)
        self._global_step = global_step
        self._initial_gradient_squared_accumulator_value = initial
        self._l1_regularization_strength = l1_regularization_strength
        self._l2_regularization_strength = l2_regularization_strength

    def _choose_rule(self) -> Rule:
        return ADAGRAD_DA

    def _slot_fills(self) -> Iterable[tuple[str, float, str]]:
        squares = self._initial_gradient_squared_accumulator_value
        return [
            ("gradient_accumulator", 0.0, self._name),
            ("gradient_squared_accumulator", squares, self._name),
        ]

    def _scalars_of(self, values: Values, dtype: Dtype, group: Hashable) -> Values:
        # The present step is not counted yet.
        step = int(number_of(resolve(self._global_step))) + 1
        return {**super()._scalars_of(values, dtype, group), "t": dtype(step)}

"""FTRL-proximal."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor

from thalweg._base.scalars import as_operand, scalar_type
from thalweg._core.grads_and_vars import has_rows
from thalweg._core.hyperparameters import as_number
from thalweg._core.step_adapter import Dtype
from thalweg._core.step_scalars import Groups
from thalweg.formula import Rule
from thalweg.rules import FTRL_POWER_V1, FTRL_V1
from thalweg.rules.ftrl_v1 import adjusted_l2
from thalweg.v1.argument_checks import check_not_negative, check_step_size
from thalweg.v1.train.rule_optimizer import RuleOptimizer, check_hyper
from thalweg.v1.train.step_adapter import Values
from thalweg.variable import as_dtype, check_held

# Group of sparse gradients: TensorFlow's sparse kernels check the learning rate.
_ROWS = "rows"


class FtrlOptimizer(RuleOptimizer):
    """FTRL-proximal, for sparse linear models.

        p = -learning_rate_power;  L2 = l2 + beta / (2 learning_rate)
        accum' = accum + g^2;  s = g + 2 l2_shrinkage var
        linear <- linear + s - (accum'^p - accum^p) / learning_rate var
        var <- (sign(linear) l1 - linear) / (accum'^p / learning_rate + 2 L2) if |linear| > l1,
        else 0;  accum <- accum'

    The first step forgets the initial value of the variable. A sparse gradient changes only its
    rows.

    Args:
        learning_rate: A float or 0-d tensor; above 0 for sparse gradients.
        learning_rate_power: 0 or below; 0 keeps the learning rate fixed.
        initial_accumulator_value: Initial value of accum; 0 or more.
        l1_regularization_strength: 0 or more.
        l2_regularization_strength: 0 or more.
        use_locking, name: See `Optimizer`.
        accum_name: Last part of the accumulators' variable names; None selects the optimizer's
            name.
        linear_name: Last part of the linear slots' variable names; None selects the optimizer's
            name.
        l2_shrinkage_regularization_strength: 0 or more; a decay added to the gradient but not to
            the accumulator.
        beta: Added to the learning rate's denominator; None means 0.

    Raises:
        ValueError: An argument is outside of its range, or `learning_rate` is a callable (at the
            first step).

    Reference: tf.compat.v1.train.FtrlOptimizer; McMahan et al. 2013
    """

    HYPERS = {
        "learning_rate": "_learning_rate", "learning_rate_power": "_learning_rate_power",
        "l1": "_l1_regularization_strength", "l2": "_l2_regularization_strength",
        "l2_shrinkage": "_l2_shrinkage_regularization_strength", "beta": "_beta",
    }  # fmt: skip
    TENSORS = {"_learning_rate_tensor": "learning_rate"}
    CALLABLES = False

    def __init__(
        self,
        learning_rate: object,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
        accum_name: str | None = None,
        linear_name: str | None = None,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float | None = None,
    ) -> None:
        initial = as_number("initial_accumulator_value", initial_accumulator_value)
        check_not_negative("initial_accumulator_value", initial)
        if isinstance(learning_rate_power, Tensor):
            check_held(learning_rate_power, "learning_rate_power")
        if learning_rate_power > 0.0:
            raise ValueError(
                f"learning_rate_power {learning_rate_power:f} needs to be negative or zero"
            )
        check_not_negative("l1_regularization_strength", l1_regularization_strength)
        check_not_negative("l2_regularization_strength", l2_regularization_strength)
        check_not_negative(
            "l2_shrinkage_regularization_strength", l2_shrinkage_regularization_strength
        )
        super().__init__(use_locking, name)
        self._learning_rate = check_hyper("learning_rate", learning_rate)
        self._learning_rate_power = learning_rate_power
        self._initial_accumulator_value = initial
        self._l1_regularization_strength = l1_regularization_strength
        self._l2_regularization_strength = l2_regularization_strength
        self._l2_shrinkage_regularization_strength = l2_shrinkage_regularization_strength
        self._beta = 0.0 if beta is None else beta
        self._accum_name, self._linear_name = accum_name, linear_name

    def _choose_rule(self) -> Rule:
        return FTRL_V1 if self._learning_rate_power == -0.5 else FTRL_POWER_V1

    def _slot_fills(self) -> Iterable[tuple[str, float, str]]:
        return [
            ("accum", self._initial_accumulator_value, self._accum_name or self._name),
            ("linear", 0.0, self._linear_name or self._name),
        ]

    def _group_variables(
        self, values: Values, variables: Sequence[Tensor], gradients: Sequence[object]
    ) -> Groups:
        if not any(has_rows(grad) for grad in gradients):
            return None
        return [_ROWS if has_rows(grad) else None for grad in gradients]

    def _hyper_scalars(self, values: Values, dtype: Dtype, group: Hashable) -> Values:
        """Return {name: scalar of `dtype`} of the rule's hyperparameters for a group of variables.

        In the result, `l2` includes the term of `beta`, and `beta` is 0. `values` has this step's
        hyperparameters. `group` is `_ROWS` for variables with sparse gradients, else None. Raise
        InvalidArgumentError for `_ROWS` if the learning rate is not above 0.
        """
        # beta joins l2 before the cast to the variable's dtype, both as operands of the rate.
        if group is _ROWS:
            check_step_size("learning_rate", values["learning_rate"])
        kind = scalar_type(values["learning_rate"])
        terms = [as_operand(values[name], kind) for name in ("learning_rate", "l2", "beta")]
        rate_dtype = getattr(values["learning_rate"], "dtype", None)
        # NumPy has no bfloat16, so terms of 16 bits are computed as tensors.
        if str(rate_dtype).removeprefix("torch.") in ("float16", "bfloat16"):
            kind = as_dtype(rate_dtype)
            terms = [torch.tensor(term, dtype=kind, device="cpu") for term in terms]
        scalars = super()._hyper_scalars(values, dtype, group)
        return {**scalars, "l2": dtype(adjusted_l2(*terms)), "beta": dtype(0)}

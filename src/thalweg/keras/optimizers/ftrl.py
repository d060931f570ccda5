"""Ftrl."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.execution_context import is_symbolic
from thalweg._core.hyperparameters import as_hyper, as_number
from thalweg._core.step_adapter import Dtype
from thalweg.formula import Rule
from thalweg.keras.optimizers.builtin import BuiltIn
from thalweg.keras.optimizers.optimizer import Optimizer
from thalweg.rules.ftrl import FTRL
from thalweg.rules.ftrl_power import FTRL_POWER


class Ftrl(BuiltIn):
    """FTRL-proximal ("follow the regularized leader"), with l1, l2 and shrinkage.

        n = accumulator + g^2;  p = -learning_rate_power;  gs = g + 2 l2_shrinkage var
        linear <- linear + gs - (n^p - accumulator^p) / learning_rate var
        L = l2 + beta / (2 learning_rate)
        var <- (clip(linear, -l1, l1) - linear) / (n^p / learning_rate + 2 L)
        accumulator <- n

    The variable is rebuilt from `linear`, so the first step forgets its initial value. A sparse
    gradient changes only its rows.

    Args:
        learning_rate: A float, 0-d tensor, schedule, or callable without arguments.
        learning_rate_power: 0 or negative; -0.5 takes the root instead of a power.
        initial_accumulator_value: Initial value of the accumulator, 0 or more.
        l1_regularization_strength: 0 or more; makes weights exactly 0.
        l2_regularization_strength: 0 or more.
        name: Name of the optimizer.
        l2_shrinkage_regularization_strength: 0 or more; a decay in the gradient only.
        beta: Added to l2 as beta / (2 learning_rate).
        **kwargs: See `Optimizer`.

    Raises:
        ValueError: An argument has the wrong sign.

    Differs from:
        TensorFlow accepts and ignores `lr=`; here it sets the learning rate.

    Reference: tf.keras.optimizers.Ftrl (OptimizerV2); McMahan et al. 2013
    """

    EXACT = {}
    NAMES = {"l1": "l1_regularization_strength", "l2": "l2_regularization_strength"}
    CONFIG_HYPERS = (
        "learning_rate", "learning_rate_power", "l1_regularization_strength",
        "l2_regularization_strength", "beta",
    )  # fmt: skip
    CONFIG_FIELDS = {
        "initial_accumulator_value": "_initial_accumulator_value",
        "l2_shrinkage_regularization_strength": "_l2_shrinkage_regularization_strength",
    }

    def __init__(
        self,
        learning_rate: object = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        name: str | None = "Ftrl",
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        **kwargs: Any,
    ) -> None:
        # As in TensorFlow, `kwargs` are checked before the numbers, and hyperparameters after them.
        Optimizer.__init__(self, name, **kwargs)
        power = as_number("learning_rate_power", learning_rate_power)
        if power > 0.0:
            raise ValueError(f"learning_rate_power {power:f} needs to be negative or zero")
        signed_options = {
            "initial_accumulator_value": initial_accumulator_value,
            "l1_regularization_strength": l1_regularization_strength,
            "l2_regularization_strength": l2_regularization_strength,
            "l2_shrinkage_regularization_strength": l2_shrinkage_regularization_strength,
        }
        values = {key: as_number(key, value) for key, value in signed_options.items()}
        for key, value in values.items():
            if value < 0.0:
                raise ValueError(f"{key} {value:f} needs to be positive or zero")
        self._initial_accumulator_value = values["initial_accumulator_value"]
        self._l2_shrinkage_regularization_strength = values["l2_shrinkage_regularization_strength"]
        self._set_hypers(
            kwargs,
            learning_rate,
            learning_rate_power=learning_rate_power,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
            beta=beta,
        )

    def _choose_rule(self) -> Rule:
        """Return the rule of this step: with a root, or with a power."""
        power = self._hyper.now("learning_rate_power")
        # Only a run has the power's value. Both rules have the same slots.
        if is_symbolic(power):
            return FTRL_POWER
        return FTRL if float(power) == -0.5 else FTRL_POWER

    def _hyper_scalars(self, dtype: Dtype) -> dict[str, object]:
        """Return the rule's hyperparameters in this step, by name, in a compute dtype."""
        shrinkage = as_hyper(self._l2_shrinkage_regularization_strength, dtype)
        return {**super()._hyper_scalars(dtype), "l2_shrinkage": shrinkage}

    def _exact_names(self) -> tuple[str, ...]:
        """Return the names of attributes, other than variables, that scalars depend on."""
        return (*super()._exact_names(), "_l2_shrinkage_regularization_strength")

    def _scalar(self, name: str, dtype: Dtype) -> Any:
        """Return a hyperparameter as a scalar of a compute dtype; None for `l2_shrinkage`.

        `_hyper_scalars` sets `l2_shrinkage`, which is an attribute and no hyperparameter.
        """
        return None if name == "l2_shrinkage" else super()._scalar(name, dtype)

    def _slot_initial(self, name: str) -> float:
        """Return the initial value of new slots of this name."""
        return self._initial_accumulator_value if name == "accumulator" else 0.0

    def _create_slots(self, var_list: list[Tensor]) -> None:
        """Create slots in TensorFlow's order: both slots of a variable before the next variable."""
        old_count = len(self._weights)
        super()._create_slots(var_list)
        # Keras creates both slots of a variable before those of the next.
        new_slots = self._weights[old_count:]
        half = len(new_slots) // 2
        self._weights[old_count:] = [
            slot for pair in zip(new_slots[:half], new_slots[half:], strict=True) for slot in pair
        ]

    def _step_coefficients(self, dtype: object, state: dict[str, object]) -> dict[str, object]:
        """Return TensorFlow's coefficients by name; `state` has the learning rate as "lr_t"."""
        names = ("learning_rate_power", "l1_regularization_strength", "beta")
        tensors = self._read_tensors(dtype, *names, "l2_regularization_strength")
        shrinkage = as_hyper(self._l2_shrinkage_regularization_strength, np.float64)
        shrinkage = torch.full_like(tensors["beta"], shrinkage)
        return {**tensors, "l2_shrinkage_regularization_strength": shrinkage}

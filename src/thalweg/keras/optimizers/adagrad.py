"""Adagrad."""

from __future__ import annotations

from typing import Any

import torch

from thalweg._core.hyperparameters import as_number
from thalweg.keras.optimizers.builtin import BuiltIn, as_epsilon
from thalweg.rules.adagrad import ADAGRAD


class Adagrad(BuiltIn):
    """Adagrad.

        accumulator <- accumulator + g^2
        var <- var - learning_rate g / (sqrt(accumulator) + epsilon)

    A sparse gradient changes only its rows.

    Args:
        learning_rate: A float, 0-d tensor, schedule, or callable without arguments.
        initial_accumulator_value: Initial value of the accumulator, 0 or more.
        epsilon: Added to the root; None and 0 mean 1e-7.
        name: Name of the optimizer.
        **kwargs: See `Optimizer`.

    Raises:
        ValueError: initial_accumulator_value is negative.

    Differs from:
        torch.optim.Adagrad starts from 0 and has epsilon 1e-10.

    Reference: tf.keras.optimizers.Adagrad (OptimizerV2); https://jmlr.org/papers/v12/duchi11a.html
    """

    CONFIG_HYPERS = ("learning_rate",)
    CONFIG_FIELDS = {
        "initial_accumulator_value": "_initial_accumulator_value",
        "epsilon": "epsilon",
    }
    MAY_LACK_ITERATIONS = True

    def __init__(
        self,
        learning_rate: object = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float | None = 1e-7,
        name: str | None = "Adagrad",
        **kwargs: object,
    ) -> None:
        start = as_number("initial_accumulator_value", initial_accumulator_value)
        if start < 0.0:
            raise ValueError(f"initial_accumulator_value must be non-negative: {start}")
        super().__init__(name, kwargs, learning_rate)
        self._initial_accumulator_value = start
        self.epsilon = as_epsilon(epsilon)
        self.rule = ADAGRAD

    def _slot_initial(self, name: str) -> float:
        """Return the initial value of new slots of this name."""
        return self._initial_accumulator_value

    def _step_coefficients(self, dtype: object, state: dict[str, Any]) -> dict[str, object]:
        """Return TensorFlow's coefficients by name; `state` has the learning rate as "lr_t"."""
        zero = torch.zeros((), dtype=torch.int64, device="cpu")
        tensors = self._read_tensors(dtype, "epsilon")
        return {**tensors, "neg_lr_t": -state["lr_t"], "zero": zero}

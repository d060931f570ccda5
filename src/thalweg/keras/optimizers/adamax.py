"""Adamax."""

from __future__ import annotations

from typing import Any

import torch

from thalweg.keras.optimizers.builtin import BuiltIn, as_epsilon
from thalweg.rules.adamax import ADAMAX


class Adamax(BuiltIn):
    """Adamax: Adam with the infinity norm.

        m <- m + (g - m)(1 - beta_1);  v <- max(beta_2 v, |g|)
        var <- var - learning_rate / (1 - beta_1^t) m / (v + epsilon)

    A sparse gradient changes only its rows.

    Args:
        learning_rate: A float, 0-d tensor, schedule, or callable without arguments.
        beta_1: Decay rate of m. A float, tensor or callable.
        beta_2: Decay rate of v. A float, tensor or callable.
        epsilon: Added to v; None and 0 mean 1e-7.
        name: Name of the optimizer.
        **kwargs: See `Optimizer`.

    Differs from:
        torch.optim.Adamax adds epsilon to `|g|` inside the maximum.

    Reference: tf.keras.optimizers.Adamax (OptimizerV2); https://arxiv.org/abs/1412.6980
    """

    CONFIG_HYPERS = ("learning_rate", "beta_1", "beta_2")
    CONFIG_FIELDS = {"epsilon": "epsilon"}

    def __init__(
        self,
        learning_rate: object = 0.001,
        beta_1: object = 0.9,
        beta_2: object = 0.999,
        epsilon: float | None = 1e-7,
        name: str | None = "Adamax",
        **kwargs: object,
    ) -> None:
        super().__init__(name, kwargs, learning_rate, beta_1=beta_1, beta_2=beta_2)
        self.epsilon = as_epsilon(epsilon)
        self.rule = ADAMAX

    def _step_coefficients(self, dtype: object, state: dict[str, Any]) -> dict[str, object]:
        """Return TensorFlow's coefficients by name; `state` has the learning rate as "lr_t"."""
        zero = torch.zeros((), dtype=torch.int64, device="cpu")
        tensors = {**self._read_tensors(dtype, "epsilon"), **self._read_betas(dtype)}
        rate = -state["lr_t"] / (1 - tensors["beta_1_power"])
        return {**tensors, "neg_scaled_lr": rate, "zero": zero}

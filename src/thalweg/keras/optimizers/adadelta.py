"""Adadelta."""

from __future__ import annotations

from thalweg.keras.optimizers.builtin import BuiltIn, as_epsilon
from thalweg.rules.adadelta import ADADELTA


class Adadelta(BuiltIn):
    """Adadelta.

        accum_grad <- rho accum_grad + (1 - rho) g^2
        u = sqrt(accum_var + epsilon) / sqrt(accum_grad + epsilon) g
        var <- var - learning_rate u;  accum_var <- rho accum_var + (1 - rho) u^2

    A sparse gradient changes only its rows.

    Args:
        learning_rate: A float, 0-d tensor, schedule, or callable without arguments.
        rho: Decay rate of the averages. A float, tensor or callable.
        epsilon: Added inside the roots; None and 0 mean 1e-7.
        name: Name of the optimizer.
        **kwargs: See `Optimizer`.

    Differs from:
        TensorFlow's dense float32 kernel takes an approximate reciprocal root, so its last bits
        differ. torch.optim.Adadelta has learning rate 1, rho 0.9 and epsilon 1e-6.

    Reference: tf.keras.optimizers.Adadelta (OptimizerV2); https://arxiv.org/abs/1212.5701
    """

    CONFIG_HYPERS = ("learning_rate", "rho")
    CONFIG_FIELDS = {"epsilon": "epsilon"}
    MAY_LACK_ITERATIONS = True

    def __init__(
        self,
        learning_rate: object = 0.001,
        rho: object = 0.95,
        epsilon: float | None = 1e-7,
        name: str | None = "Adadelta",
        **kwargs: object,
    ) -> None:
        super().__init__(name, kwargs, learning_rate, rho=rho)
        self.epsilon = as_epsilon(epsilon)
        self.rule = ADADELTA

    def _step_coefficients(self, dtype: object, state: dict[str, object]) -> dict[str, object]:
        """Return TensorFlow's coefficients by name; `state` has the learning rate as "lr_t"."""
        return self._read_tensors(dtype, "epsilon", "rho")

"""RMSprop in its four forms."""

from __future__ import annotations

from typing import Any

from thalweg._core.hyperparameters import check_fraction, is_on
from thalweg.formula import Rule
from thalweg.keras.optimizers.builtin import BuiltIn, as_epsilon
from thalweg.rules.rmsprop import CENTERED_RMSPROP, RMSPROP
from thalweg.rules.rmsprop_momentum import CENTERED_MOMENTUM_RMSPROP, MOMENTUM_RMSPROP


class RMSprop(BuiltIn):
    """RMSprop: plain or centered, with or without momentum.

        rms <- rho rms + (1 - rho) g^2;  centered: mg <- rho mg + (1 - rho) g
        d = rms, centered: rms - mg^2
        without momentum: var <- var - learning_rate g / (sqrt(d) + epsilon)
        with momentum: mom <- momentum mom + learning_rate g / sqrt(d + epsilon);  var <- var - mom

    A sparse gradient moves only its rows; without momentum it decays rms and mg of all rows.

    Args:
        learning_rate: A float, 0-d tensor, schedule, or callable without arguments.
        rho: Decay rate of the averages. A float, tensor or callable.
        momentum: A number in [0, 1], tensor or callable. A number above 0, or any tensor or
            callable, creates the slot of the momentum.
        epsilon: Added to the root without momentum, inside the root with momentum; None and 0 mean
            1e-7.
        centered: True to normalise by the variance instead of the mean square.
        name: Name of the optimizer.
        **kwargs: See `Optimizer`.

    Raises:
        ValueError: momentum is a number outside [0, 1].

    Differs from:
        torch.optim.RMSprop keeps epsilon outside the root and the learning rate out of the momentum
        buffer.

    Reference: tf.keras.optimizers.RMSprop (OptimizerV2)
    """

    CONFIG_HYPERS = ("learning_rate", "rho", "momentum")
    CONFIG_FIELDS = {"epsilon": "epsilon", "centered": "centered"}
    MAY_LACK_ITERATIONS = True

    def __init__(
        self,
        learning_rate: object = 0.001,
        rho: object = 0.9,
        momentum: object = 0.0,
        epsilon: float | None = 1e-7,
        centered: bool = False,
        name: str | None = "RMSprop",
        **kwargs: object,
    ) -> None:
        super().__init__(name, kwargs, learning_rate, rho=rho, momentum=momentum)
        check_fraction("momentum", momentum)
        self._momentum = is_on(momentum)
        self.epsilon = as_epsilon(epsilon)
        self.centered = centered

    def _choose_rule(self) -> Rule:
        """Return the rule for `centered` and momentum."""
        if self._momentum:
            return CENTERED_MOMENTUM_RMSPROP if self.centered else MOMENTUM_RMSPROP
        return CENTERED_RMSPROP if self.centered else RMSPROP

    def _step_coefficients(self, dtype: object, state: dict[str, Any]) -> dict[str, object]:
        """Return TensorFlow's coefficients by name; `state` has the learning rate as "lr_t"."""
        tensors = self._read_tensors(dtype, "epsilon", "rho", "momentum")
        return {**tensors, "neg_lr_t": -state["lr_t"], "one_minus_rho": 1.0 - tensors["rho"]}

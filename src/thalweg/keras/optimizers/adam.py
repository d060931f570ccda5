"""Adam and AMSGrad."""

from __future__ import annotations

import torch

from thalweg.errors import NumericsWarning, warn
from thalweg.formula import Rule
from thalweg.keras.optimizers.builtin import BuiltIn, as_epsilon
from thalweg.rules.adam import ADAM
from thalweg.rules.amsgrad import AMSGRAD


class Adam(BuiltIn):
    """Adam, in TensorFlow's form.

        t = iterations + 1;  alpha = learning_rate sqrt(1 - beta_2^t) / (1 - beta_1^t)
        m <- m + (g - m)(1 - beta_1);  v <- v + (g^2 - v)(1 - beta_2)
        var <- var - alpha m / (sqrt(v) + epsilon)
        amsgrad: vhat <- max(vhat, v), which replaces v in the last line

    A sparse gradient decays m and v of all rows and moves all rows; it is not lazy.

    Args:
        learning_rate: A float, 0-d tensor, schedule, or callable without arguments.
        beta_1: Decay rate of m. A float, tensor or callable.
        beta_2: Decay rate of v. A float, tensor or callable.
        epsilon: Added to the root of v before bias correction ("epsilon hat"); None and 0 mean
            1e-7.
        amsgrad: True to divide by the largest v so far.
        name: Name of the optimizer.
        **kwargs: See `Optimizer`.

    Differs from:
        torch.optim.Adam adds epsilon after bias correction and counts steps per parameter.

    Example:
        >>> from thalweg import Variable
        >>> w = Variable(10.0, name="w")
        >>> opt = Adam(learning_rate=0.1)
        >>> _ = opt.minimize(lambda: w**2 / 2.0, [w])
        >>> w.numpy()
        np.float32(9.9)

    Reference: tf.keras.optimizers.Adam (OptimizerV2); https://arxiv.org/abs/1412.6980
    """

    CONFIG_HYPERS = ("learning_rate", "beta_1", "beta_2")
    CONFIG_FIELDS = {"epsilon": "epsilon", "amsgrad": "amsgrad"}

    def __init__(
        self,
        learning_rate: object = 0.001,
        beta_1: object = 0.9,
        beta_2: object = 0.999,
        epsilon: float | None = 1e-7,
        amsgrad: bool = False,
        name: str | None = "Adam",
        **kwargs: object,
    ) -> None:
        super().__init__(name, kwargs, learning_rate, beta_1=beta_1, beta_2=beta_2)
        self.epsilon = as_epsilon(epsilon)
        self.amsgrad = amsgrad

    def _choose_rule(self) -> Rule:
        """Return the rule of this step, with or without AMSGrad."""
        return AMSGRAD if self.amsgrad else ADAM

    def _adapted_weights(self, weights: list[object]) -> list[object]:
        """Return the values that `set_weights(weights)` assigns.

        If `weights` has values for AMSGrad's slots and `amsgrad` is False, leave these values out.
        If `weights` has one value and this optimizer has no weights yet, warn and return []. In
        other cases, return `weights` unchanged.
        """
        # Keras drops AMSGrad's slots from lists of 3 n + 1 weights, and takes one weight for n = 0.
        if not self._weights and len(weights) == 1:
            warn(
                f"{self._name} has no weights before its first step, and sets none of the one it"
                " was given, as in TensorFlow.",
                NumericsWarning,
            )
            return []
        # Weights saved with amsgrad may be set without it.
        slots = len(self._weights) - 1
        surplus = slots > 0 and slots % 2 == 0 and 2 * (len(weights) - 1) == 3 * slots
        return weights[: 1 + slots] if surplus and not self.amsgrad else weights

    def _step_coefficients(self, dtype: object, state: dict[str, object]) -> dict[str, object]:
        """Return TensorFlow's coefficients by name; `state` has the learning rate as "lr_t"."""
        tensors = {**self._read_tensors(dtype, "epsilon"), **self._read_betas(dtype)}
        unbiased = torch.sqrt(1 - tensors["beta_2_power"]) / (1 - tensors["beta_1_power"])
        return {**tensors, "lr": state["lr_t"] * unbiased}

"""SGD, with momentum and Nesterov momentum."""

from __future__ import annotations

from thalweg._core.hyperparameters import check_fraction, is_on
from thalweg.formula import Rule
from thalweg.keras.optimizers.builtin import BuiltIn
from thalweg.rules.gradient_descent import SGD as PLAIN
from thalweg.rules.momentum import MOMENTUM, NESTEROV


class SGD(BuiltIn):
    """Gradient descent, optionally with momentum.

        without momentum: var <- var - learning_rate g
        with momentum: v <- momentum v - learning_rate g;  var <- var + v
        nesterov: var <- var + momentum v - learning_rate g, with the new v

    Args:
        learning_rate: A float, 0-d tensor, schedule, or callable without arguments.
        momentum: A number in [0, 1], tensor or callable. A number above 0, or any tensor or
            callable, creates the slot of the momentum.
        nesterov: True for Nesterov momentum; no effect without momentum.
        name: Name of the optimizer.
        **kwargs: See `Optimizer`.

    Raises:
        ValueError: momentum is a number outside [0, 1].

    Differs from:
        torch.optim.SGD keeps the learning rate out of the velocity, so results differ after a
        change of the learning rate.

    Example:
        >>> from thalweg import Variable
        >>> w = Variable(1.0, name="w")
        >>> opt = SGD(learning_rate=0.1, momentum=0.9)
        >>> for _ in range(2):
        ...     _ = opt.minimize(lambda: w**2 / 2.0, [w])
        >>> w.numpy()
        np.float32(0.71999997)

    Reference: tf.keras.optimizers.SGD (OptimizerV2)
    """

    EXACT = {}
    CONFIG_HYPERS = ("learning_rate", "momentum")
    CONFIG_FIELDS = {"nesterov": "nesterov"}

    def __init__(
        self,
        learning_rate: object = 0.01,
        momentum: object = 0.0,
        nesterov: bool = False,
        name: str | None = "SGD",
        **kwargs: object,
    ) -> None:
        super().__init__(name, kwargs, learning_rate, momentum=momentum)
        check_fraction("momentum", momentum)
        self._momentum = is_on(momentum)
        self.nesterov = nesterov

    def _choose_rule(self) -> Rule:
        """Return the rule for momentum and Nesterov momentum."""
        if not self._momentum:
            return PLAIN
        return NESTEROV if self.nesterov else MOMENTUM

    def _step_coefficients(self, dtype: object, state: dict[str, object]) -> dict[str, object]:
        """Return TensorFlow's coefficients by name; `state` has the learning rate as "lr_t"."""
        return self._read_tensors(dtype, "momentum")

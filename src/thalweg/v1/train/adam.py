"""Adam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg._base.device_counters import Move
from thalweg._base.execution_context import graph_of
from thalweg._base.scalars import scalar_type
from thalweg._core.hyperparameters import as_hyper
from thalweg.formula import Rule
from thalweg.rules import ADAM_V1
from thalweg.v1.train.rule_optimizer import RuleOptimizer, check_hyper
from thalweg.v1.train.slot_creator import base_name
from thalweg.v1.train.step_adapter import Values


class AdamOptimizer(RuleOptimizer):
    """Adam, in TensorFlow's form.

        alpha = learning_rate sqrt(1 - beta2_power) / (1 - beta1_power)
        m <- m + (g - m)(1 - beta1);  v <- v + (g^2 - v)(1 - beta2)
        var <- var - alpha m / (sqrt(v) + epsilon)
        beta1_power <- beta1_power beta1;  beta2_power <- beta2_power beta2

    Both powers are variables of the optimizer, float32 if the betas are Python floats. Each step
    multiplies them once. A sparse gradient decays m and v of all rows and moves all rows;
    `contrib.opt.LazyAdamOptimizer` changes only the gradient's rows.

    Args:
        learning_rate: A float, 0-d tensor, or callable without arguments.
        beta1: Decay rate of m. A float, tensor or callable.
        beta2: Decay rate of v. A float, tensor or callable.
        epsilon: Added to the root of v before bias correction ("epsilon hat"); underflows to 0 for
            float16 variables.
        use_locking, name: See `Optimizer`.
        use_own_namescope_for_non_slot_vars: Accepted for compatibility.

    Differs from:
        torch.optim.Adam adds epsilon after bias correction and counts steps per parameter.

    Example:
        >>> from thalweg import Variable
        >>> w = Variable(10.0, name="w")
        >>> AdamOptimizer(0.1).minimize(lambda: w**2 / 2.0, var_list=[w])
        >>> w.numpy()
        np.float32(9.9)

    Reference: tf.compat.v1.train.AdamOptimizer; https://arxiv.org/abs/1412.6980
    """

    HYPERS = {"learning_rate": "_lr", "beta1": "_beta1", "beta2": "_beta2", "epsilon": "_epsilon"}
    TENSORS = {f"{attribute}_t": name for name, attribute in HYPERS.items()}
    POWERS = {"beta1_power": "beta1", "beta2_power": "beta2"}

    def __init__(
        self,
        learning_rate: object = 0.001,
        beta1: object = 0.9,
        beta2: object = 0.999,
        epsilon: object = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
        use_own_namescope_for_non_slot_vars: bool = False,
    ) -> None:
        super().__init__(use_locking, name)
        self._lr = check_hyper("learning_rate", learning_rate)
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon

    def _choose_rule(self) -> Rule:
        return ADAM_V1

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        # As in TensorFlow: by name, so that all workers choose the same variable.
        first = min(var_list, key=base_name)
        for power, hyper in self.POWERS.items():
            initial = getattr(self, self.HYPERS[hyper])
            self._create_non_slot_variable(initial, power, colocate_with=first)
        super()._create_slots(var_list)

    def _get_beta_accumulators(self) -> tuple[Any, Any]:
        """Return beta1_power and beta2_power of the default graph, or of eager mode."""
        graph = graph_of()
        return (
            self._get_non_slot_variable("beta1_power", graph=graph),
            self._get_non_slot_variable("beta2_power", graph=graph),
        )

    def _counting_moves(self, values: Values) -> list[Move]:
        powers = {name: self._get_non_slot_variable(name) for name in self.POWERS}
        return [
            (power, as_hyper(values[self.POWERS[name]], scalar_type(power)))
            for name, power in powers.items()
        ]

"""RMSProp."""

from __future__ import annotations

from collections.abc import Iterable

from thalweg.formula import Rule
from thalweg.rules import CENTERED_RMSPROP_V1, RMSPROP_V1
from thalweg.v1.train.rule_optimizer import RuleOptimizer, check_hyper


class RMSPropOptimizer(RuleOptimizer):
    """RMSProp, with the learning rate inside of the momentum.

        rms <- decay rms + (1 - decay) g^2, from 1;  d = rms + epsilon
        centered: mg <- decay mg + (1 - decay) g;  d = rms - mg^2 + epsilon
        mom <- momentum mom + learning_rate g / sqrt(d);  var <- var - mom

    A sparse gradient changes only its rows.

    Args:
        learning_rate: A float, 0-d tensor, or callable without arguments.
        decay: Decay rate of the running averages. A float, tensor or callable.
        momentum: Decay rate of the velocity. A float, tensor or callable.
        epsilon: Added inside the root. A float, tensor or callable.
        use_locking: See `Optimizer`.
        centered: True to divide by the gradient's standard deviation instead of the root mean
            square.
        name: Name of the optimizer.

    Differs from:
        torch.optim.RMSprop starts the average at 0, adds epsilon outside the root and keeps the
        learning rate out of the momentum.

    Reference: tf.compat.v1.train.RMSPropOptimizer; Tieleman & Hinton 2012
    """

    HYPERS = {
        "learning_rate": "_learning_rate", "rho": "_decay", "momentum": "_momentum",
        "epsilon": "_epsilon",
    }  # fmt: skip
    TENSORS = {f"{attribute}_tensor": name for name, attribute in HYPERS.items()}

    def __init__(
        self,
        learning_rate: object,
        decay: object = 0.9,
        momentum: object = 0.0,
        epsilon: object = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = check_hyper("learning_rate", learning_rate)
        self._decay, self._momentum, self._epsilon = decay, momentum, epsilon
        self._centered = centered

    def _choose_rule(self) -> Rule:
        return CENTERED_RMSPROP_V1 if self._centered else RMSPROP_V1

    def _slot_fills(self) -> Iterable[tuple[str, float, str]]:
        # TensorFlow's order, which sets the slots' names: w/RMSProp, w/RMSProp_1, w/RMSProp_2.
        mean = [("mg", 0.0, self._name)] if self._centered else []
        return [("rms", 1.0, self._name), *mean, ("momentum", 0.0, self._name)]

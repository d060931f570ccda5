"""Optimizers of TensorFlow in torch's form: `tensorflow.Ftrl(model.parameters(), lr=0.1)`.

Results equal those of `thalweg.keras.optimizers` to the bit, or those of `thalweg.v1` for classes
that Keras lacks. Groups, state and files have the form of torch.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thalweg import rules
from thalweg._core.hyperparameters import as_number, check_fraction
from thalweg._core.param_groups import Params
from thalweg.optim.rule_optimizer import RuleOptimizer

_POWERS = {"beta1_power": "beta1", "beta2_power": "beta2"}
_BETAS = (0.9, 0.999)
Rate = float | Tensor
Betas = tuple[Rate, Rate]

__all__ = [
    "SGD", "Adadelta", "Adagrad", "AdagradDA", "Adam", "AdamW", "Adamax", "Ftrl", "LazyAdam",
    "Momentum", "MomentumW", "Nadam", "ProximalAdagrad", "ProximalGradientDescent", "RMSprop",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


class SGD(RuleOptimizer):
    """`thalweg.keras.optimizers.SGD`: the velocity includes the learning rate.

    Args:
        params: Parameters or groups, as torch's optimizers take them.
        lr: The learning rate, a number or a tensor of shape ().
        momentum: A number in [0, 1], fixed in the constructor: 0 has no momentum.
        nesterov: True if momentum is Nesterov's.
    """

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        **around: Any,
    ) -> None:
        check_fraction("momentum", momentum)
        # Without momentum there is no slot: a group cannot turn momentum on later.
        if not momentum:
            super().__init__(params, rules.SGD, lr, **around)
        else:
            rule = rules.NESTEROV if nesterov else rules.MOMENTUM
            super().__init__(params, rule, lr, momentum=momentum, **around)


class Momentum(RuleOptimizer):
    """`thalweg.v1.train.MomentumOptimizer`: the learning rate multiplies the velocity."""

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.01,
        momentum: Rate = 0.9,
        nesterov: bool = False,
        **around: Any,
    ) -> None:
        rule = rules.NESTEROV_BALL if nesterov else rules.HEAVY_BALL
        super().__init__(params, rule, lr, momentum=momentum, **around)


class MomentumW(RuleOptimizer):
    """`thalweg.v1.contrib.opt.MomentumWOptimizer`: decay without the rate, then `Momentum`."""

    _exact = ("weight_decay",)

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.01,
        momentum: Rate = 0.9,
        weight_decay: Rate = 0.01,
        nesterov: bool = False,
        **around: Any,
    ) -> None:
        rule = rules.NESTEROV_W if nesterov else rules.MOMENTUM_W
        super().__init__(params, rule, lr, momentum=momentum, weight_decay=weight_decay, **around)


class Adam(RuleOptimizer):
    """`thalweg.keras.optimizers.Adam`: epsilon is added before bias correction.

    A sparse gradient decays m and v of all rows, and moves all rows; `LazyAdam` does not.
    """

    _exact = ("epsilon",)

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.001,
        betas: Betas = _BETAS,
        eps: float = 1e-7,
        amsgrad: bool = False,
        **around: Any,
    ) -> None:
        super().__init__(
            params, rules.AMSGRAD if amsgrad else rules.ADAM, lr, betas=betas, eps=eps, **around
        )


class LazyAdam(RuleOptimizer):
    """`thalweg.v1.contrib.opt.LazyAdamOptimizer`: a sparse gradient changes only its rows."""

    product_hypers = _POWERS

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.001,
        betas: Betas = _BETAS,
        eps: float = 1e-8,
        **around: Any,
    ) -> None:
        super().__init__(params, rules.LAZY_ADAM, lr, betas=betas, eps=eps, **around)


class AdamW(RuleOptimizer):
    """`thalweg.v1.contrib.opt.AdamWOptimizer`: decay without the rate, then a step of Adam."""

    _exact = ("weight_decay",)
    product_hypers = _POWERS

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.001,
        betas: Betas = _BETAS,
        eps: float = 1e-8,
        weight_decay: Rate = 0.01,
        **around: Any,
    ) -> None:
        super().__init__(
            params, rules.ADAM_W, lr, betas=betas, eps=eps, weight_decay=weight_decay, **around
        )


class Adamax(RuleOptimizer):
    """`thalweg.keras.optimizers.Adamax`."""

    _exact = ("epsilon",)

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.001,
        betas: Betas = _BETAS,
        eps: float = 1e-7,
        **around: Any,
    ) -> None:
        super().__init__(params, rules.ADAMAX, lr, betas=betas, eps=eps, **around)


class Nadam(RuleOptimizer):
    """`thalweg.keras.optimizers.Nadam`.

    Args:
        decay: How fast the schedule of the momentum rises.
    """

    _exact = ("epsilon", "decay")
    _extra = {"momentum_cache": 1.0}

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.001,
        betas: Betas = _BETAS,
        eps: float = 1e-7,
        decay: float = 0.004,
        **around: Any,
    ) -> None:
        super().__init__(params, rules.NADAM, lr, betas=betas, eps=eps, decay=decay, **around)


class Adagrad(RuleOptimizer):
    """`thalweg.keras.optimizers.Adagrad`.

    Raises:
        ValueError: initial_accumulator_value is negative.
    """

    _exact = ("epsilon",)

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.001,
        initial_accumulator_value: float = 0.1,
        eps: float = 1e-7,
        **around: Any,
    ) -> None:
        initial = _start_of("accumulator", initial_accumulator_value)
        super().__init__(params, rules.ADAGRAD, lr, initial=initial, eps=eps, **around)


class AdagradDA(RuleOptimizer):
    """`thalweg.v1.train.AdagradDAOptimizer`: recomputes parameters from sums of gradients.

    Raises:
        ValueError: initial_accumulator_value is negative.
    """

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.01,
        initial_accumulator_value: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        **around: Any,
    ) -> None:
        initial = _start_of("gradient_squared_accumulator", initial_accumulator_value)
        super().__init__(params, rules.ADAGRAD_DA, lr, initial=initial, l1=l1, l2=l2, **around)


class Adadelta(RuleOptimizer):
    """`thalweg.keras.optimizers.Adadelta`."""

    _exact = ("epsilon",)

    def __init__(
        self, params: Params, lr: Rate = 0.001, rho: Rate = 0.95, eps: float = 1e-7, **around: Any
    ) -> None:
        super().__init__(params, rules.ADADELTA, lr, rho=rho, eps=eps, **around)


class RMSprop(RuleOptimizer):
    """`thalweg.keras.optimizers.RMSprop`: with momentum, epsilon is inside the root.

    Args:
        params: Parameters or groups, as torch's optimizers take them.
        lr: The learning rate.
        rho: The fraction of the averages that a step keeps.
        momentum: A number in [0, 1], fixed in the constructor: 0 has no momentum.
        eps: Epsilon.
        centered: True to divide by the root of the variance.
    """

    _exact = ("epsilon",)
    _nonzero = ("momentum",)

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.001,
        rho: Rate = 0.9,
        momentum: float = 0.0,
        eps: float = 1e-7,
        centered: bool = False,
        **around: Any,
    ) -> None:
        check_fraction("momentum", momentum)
        if not momentum:
            rule = rules.CENTERED_RMSPROP if centered else rules.RMSPROP
            super().__init__(params, rule, lr, rho=rho, eps=eps, **around)
        else:
            rule = rules.CENTERED_MOMENTUM_RMSPROP if centered else rules.MOMENTUM_RMSPROP
            super().__init__(params, rule, lr, rho=rho, eps=eps, momentum=momentum, **around)


class Ftrl(RuleOptimizer):
    """`thalweg.keras.optimizers.Ftrl`: recomputes parameters from the slot `linear`.

    Args:
        learning_rate_power: The power by which the rate falls; not above 0.
        l2_shrinkage: Strength of an L2 penalty that is added to the gradient.
        beta: Added to the root of the accumulator.

    Raises:
        ValueError: A number has the wrong sign.
    """

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        l2_shrinkage: float = 0.0,
        beta: float = 0.0,
        **around: Any,
    ) -> None:
        power = as_number("learning_rate_power", learning_rate_power)
        if power > 0.0:
            raise ValueError(f"learning_rate_power {power:f} needs to be negative or zero")
        initial = _start_of("accumulator", initial_accumulator_value)
        penalties = {"l1": l1, "l2": l2, "l2_shrinkage": l2_shrinkage}
        hypers = {name: _check_at_least_0(name, value) for name, value in penalties.items()} | {
            "beta": beta
        }
        # A square root is faster than a power, and what TensorFlow's kernel computes for -0.5.
        if power == -0.5:
            super().__init__(params, rules.FTRL, lr, initial=initial, **hypers, **around)
        else:
            hypers["learning_rate_power"] = power
            super().__init__(params, rules.FTRL_POWER, lr, initial=initial, **hypers, **around)


class ProximalAdagrad(RuleOptimizer):
    """`thalweg.v1.train.ProximalAdagradOptimizer`.

    Raises:
        ValueError: initial_accumulator_value is negative.
    """

    def __init__(
        self,
        params: Params,
        lr: Rate = 0.01,
        initial_accumulator_value: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        **around: Any,
    ) -> None:
        initial = _start_of("accumulator", initial_accumulator_value)
        super().__init__(
            params, rules.PROXIMAL_ADAGRAD, lr, initial=initial, l1=l1, l2=l2, **around
        )


class ProximalGradientDescent(RuleOptimizer):
    """`thalweg.v1.train.ProximalGradientDescentOptimizer`."""

    def __init__(
        self, params: Params, lr: Rate = 0.01, l1: Rate = 0.0, l2: Rate = 0.0, **around: Any
    ) -> None:
        super().__init__(params, rules.PROXIMAL_GRADIENT_DESCENT, lr, l1=l1, l2=l2, **around)


def _check_at_least_0(name: str, value: object) -> float:
    """Return a number as a float; raise ValueError if it is negative."""
    number = as_number(name, value)
    if number < 0.0:
        raise ValueError(f"{name} must not be negative: {number}")
    return float(number)


def _start_of(slot: str, initial_accumulator_value: object) -> dict[str, float]:
    """Return {slot: its start}; raise ValueError for a negative one."""
    return {slot: _check_at_least_0("initial_accumulator_value", initial_accumulator_value)}

"""Nadam."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from thalweg._base.execution_context import resolve
from thalweg._core.atomic_section import Call
from thalweg._core.step_adapter import Dtype, Shared
from thalweg._engines import compute_dtype
from thalweg.errors import NumericsWarning, warn
from thalweg.keras.optimizers.builtin import BuiltIn, as_epsilon
from thalweg.keras.optimizers.options import as_option
from thalweg.rules.nadam import NADAM
from thalweg.schedules import LearningRateSchedule
from thalweg.variable import as_dtype


class Nadam(BuiltIn):
    """Nadam: Adam with Nesterov momentum, and a momentum that warms up.

        mu_t = beta_1 (1 - 0.5 * 0.96^(psi t));  cache <- cache mu_t
        m <- beta_1 m + (1 - beta_1) g;  v <- beta_2 v + (1 - beta_2) g^2
        mean = (1 - mu_t) g / (1 - cache) + mu_{t+1} m / (1 - cache mu_{t+1})
        var <- var - learning_rate mean / (sqrt(v / (1 - beta_2^t)) + epsilon)

    A sparse gradient decays m and v of all rows and moves only its rows.

    Args:
        learning_rate: A float, 0-d tensor, or callable without arguments.
        beta_1: Decay rate of m. A float, tensor or callable.
        beta_2: Decay rate of v. A float, tensor or callable.
        epsilon: Added to the root; None and 0 mean 1e-7.
        name: Name of the optimizer.
        **kwargs: `schedule_decay` is psi, 0.004 by default; for the others see `Optimizer`.

    Raises:
        ValueError: learning_rate is a schedule.

    Differs from:
        TensorFlow: `from_config` keeps psi, which the configuration calls "decay"; TensorFlow
        resets it to 0.004. torch.optim.NAdam has learning rate 0.002 and epsilon 1e-8.

    Reference: tf.keras.optimizers.Nadam (OptimizerV2); Dozat 2016
    """

    EXACT = {"epsilon": "epsilon", "decay": "_initial_decay"}
    CONFIG_HYPERS = ("learning_rate", "beta_1", "beta_2")
    CONFIG_FIELDS = {"epsilon": "epsilon"}
    EXTRA = ("momentum_cache",)

    def __init__(
        self,
        learning_rate: object = 0.001,
        beta_1: object = 0.9,
        beta_2: object = 0.999,
        epsilon: float | None = 1e-7,
        name: str | None = "Nadam",
        **kwargs: object,
    ) -> None:
        if "decay" in kwargs:
            warn(
                "Nadam ignores `decay`, as in TensorFlow: pass `schedule_decay` for the decay of"
                " its momentum schedule.",
                NumericsWarning,
            )
        # TensorFlow's Nadam, too, stores `schedule_decay` as the hyperparameter `decay`.
        kwargs["decay"] = as_option("schedule_decay", kwargs.pop("schedule_decay", 0.004))
        super().__init__(name, kwargs, learning_rate, beta_1=beta_1, beta_2=beta_2)
        self.epsilon = as_epsilon(epsilon)
        self.rule = NADAM
        self._cache: Any = None

    def _set_hyper(self, name: str, value: Any) -> None:
        """Set a hyperparameter; raise ValueError for a schedule as learning rate."""
        if isinstance(value, LearningRateSchedule):
            raise ValueError(
                "The Nadam optimizer does not support tf.keras.optimizers.LearningRateSchedules as"
                " the learning rate."
            )
        super()._set_hyper(name, value)

    def _learning_rate(self, dtype: Dtype) -> object:
        """Return the learning rate of this step, without decay."""
        # Without decay: Nadam's `decay` is psi, the decay of the momentum schedule.
        return self._scalar("learning_rate", dtype)

    def _hyper_scalars(self, dtype: Dtype) -> dict[str, object]:
        """Return the rule's hyperparameters in this step, by name, in a compute dtype."""
        cache = 1.0 if self._cache is None else resolve(self._cache).item()
        return {**super()._hyper_scalars(dtype), "momentum_cache": dtype(cache)}

    def _create_slots(self, var_list: list[Tensor]) -> None:
        """Create the slots and the product of momenta."""
        if self._cache is None:
            self._make_extra("momentum_cache", var_list[0].dtype.to_real())
        super()._create_slots(var_list)

    def _counting_calls(self, shared: Shared, variables: Sequence[Tensor]) -> list[Call]:
        """Return calls that write the next product of momenta; [] if no variable has its dtype."""
        cache = resolve(self._cache)
        if all(var.dtype.to_real() is not cache.dtype for var in variables):
            # As in TensorFlow, steps of variables of another dtype do not change the cache.
            return []
        dtype = compute_dtype(cache.dtype)
        scalars = shared.get(dtype) or self._rule_scalars(dtype)
        return [partial(cache.detach().fill_, scalars["momentum_cache"].item())]

    def _extra_weights(self) -> dict[str, Tensor]:
        """Return the product of momenta by name, if it exists."""
        return {} if self._cache is None else {"momentum_cache": self._cache}

    def _own_children(self) -> dict[str, object]:
        """Return the variables other than slots, with the product of momenta, by name."""
        return {**super()._own_children(), **self._extra_weights()}

    def _make_extra(self, name: str, weight_dtype: torch.dtype) -> None:
        """Create the product of momenta and add it to `weights`."""
        initial = torch.ones((), dtype=weight_dtype, device="cpu")
        self._cache = self._make_tracked_variable(initial, name)
        self._weights.append(self._cache)

    def _step_coefficients(self, dtype: object, state: dict[str, Any]) -> dict[str, object]:
        """Return {TensorFlow's name: coefficient} for hooks; `state` has the rate as "lr_t"."""
        tensors = {**self._read_tensors(dtype, "epsilon"), **self._read_betas(dtype)}
        step = self.iterations.detach().to(as_dtype(dtype)) + 1
        base = torch.full_like(step, 0.96)
        momentum, next_momentum = (
            tensors["beta_1_t"] * (1.0 - 0.5 * torch.pow(base, self._initial_decay * count))
            for count in (step, step + 1)
        )
        cache = 1.0 if self._cache is None else resolve(self._cache).detach().to(step.dtype)
        return {
            **tensors,
            "neg_lr_t": -state["lr_t"],
            "m_t": momentum,
            "m_t_1": next_momentum,
            "one_minus_m_t": 1.0 - momentum,
            "one_minus_m_schedule_new": 1.0 - cache * momentum,
            "one_minus_m_schedule_next": 1.0 - cache * momentum * next_momentum,
            "v_t_prime_denominator": 1.0 - tensors["beta_2_power"],
        }

    def _arguments(self) -> dict[str, object]:
        """Return the constructor's arguments that affect updates, by name."""
        arguments = super()._arguments()
        return {"schedule_decay": arguments.pop("decay"), **arguments}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        config = dict(config)
        if "decay" in config:
            config.setdefault("schedule_decay", config.pop("decay"))
        return super().from_config(config, custom_objects)

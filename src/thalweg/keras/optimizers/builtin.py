"""Base class of the eight optimizers of Keras."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch

from thalweg._core.hyperparameters import as_number, check_value
from thalweg._core.step_adapter import Dtype
from thalweg.keras.optimizers.optimizer import Optimizer
from thalweg.keras.optimizers.rule_optimizer import RuleOptimizer
from thalweg.variable import as_dtype


def as_epsilon(value: object) -> Any:
    """Return epsilon as a number; None and 0 mean 1e-7.

    Raises:
        TypeError: The value is not a number.
        ValueError: The value is NaN.
    """
    return 1e-7 if value is None else as_number("epsilon", value) or 1e-7


class BuiltIn(RuleOptimizer):
    """Keras optimizer that runs a built-in rule, with Keras' names of hyperparameters.

    Attributes:
        EXACT: {hyperparameter of the rule: attribute} of values not rounded to float32 first.
        CONFIG_HYPERS: Names of hyperparameters in `get_config`, before "decay".
        CONFIG_FIELDS: {constructor argument: attribute} for further entries of `get_config`.
        MAY_LACK_ITERATIONS: True if old checkpoints have weights without `iterations`.
    """

    EXACT: dict[str, str] = {"epsilon": "epsilon"}
    CONFIG_HYPERS: tuple[str, ...] = ()
    CONFIG_FIELDS: dict[str, str] = {}
    MAY_LACK_ITERATIONS: bool = False
    epsilon: float
    NAMES = {"beta1": "beta_1", "beta2": "beta_2"}

    def __init__(
        self, name: str | None, kwargs: dict[str, Any], learning_rate: object, **hypers: object
    ) -> None:
        """Initialize the base class, and set the hyperparameters.

        Args:
            name: The optimizer's name.
            kwargs: Keywords of `Optimizer`, such as `clipnorm`; `lr` replaces `learning_rate`.
            learning_rate: The learning rate.
            **hypers: Hyperparameters besides `decay` and `learning_rate`; set in this order.
        """
        Optimizer.__init__(self, name, **kwargs)
        self._set_hypers(kwargs, learning_rate, **hypers)

    def _set_hypers(self, kwargs: dict[str, Any], learning_rate: object, **hypers: object) -> None:
        """Set the decay, the learning rate and `hypers`, in this order; see `__init__`."""
        # `learning_rate` is checked even where `lr` replaces it.
        rate = kwargs.get("lr", check_value("learning_rate", learning_rate))
        hypers = {"decay": self._initial_decay, "learning_rate": rate, **hypers}
        for hyper, value in hypers.items():
            self._set_hyper(hyper, value)

    def _hyper_scalars(self, dtype: Dtype) -> dict[str, object]:
        """Return {hyperparameter of the rule: scalar of the NumPy type `dtype`} for this step."""
        values: dict[str, object] = {}
        for hyper in self._choose_rule().hypers:
            name = hyper.name
            if name in self.EXACT:
                values[name] = dtype(as_number(name, getattr(self, self.EXACT[name])))
            else:
                values[name] = self._scalar_of(name, dtype)
        return values

    def _exact_names(self) -> tuple[str, ...]:
        """Return the names of attributes, other than variables, that scalars depend on."""
        return tuple(self.EXACT.values())

    def _read_tensors(self, dtype: object, *names: str) -> dict[str, Any]:
        """Return hyperparameters, and epsilon if named, as 0-d CPU tensors by name."""
        hyper_names = [name for name in names if name != "epsilon"]
        tensors = {name: self._get_hyper(name, dtype) for name in hyper_names}
        if "epsilon" in names:
            tensors["epsilon"] = torch.tensor(self.epsilon, dtype=as_dtype(dtype), device="cpu")
        return tensors

    def _read_betas(self, dtype: object) -> dict[str, Any]:
        """Return {name: 0-d tensor}: `beta_1_t`, `beta_1_power` and `one_minus_beta_1_t`.

        The same three names exist for `beta_2`. A power is beta ** (iterations + 1).
        """
        step = self.iterations.detach().to(as_dtype(dtype)) + 1
        tensors: dict[str, object] = {}
        for name in ("beta_1", "beta_2"):
            beta = self._get_hyper(name, dtype)
            tensors[f"{name}_t"] = beta
            tensors[f"{name}_power"] = torch.pow(beta, step)
            tensors[f"one_minus_{name}_t"] = 1 - beta
        return tensors

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, from which `from_config` makes an equal optimizer."""
        hyperparams = {name: self._serialize_hyperparameter(name) for name in self.CONFIG_HYPERS}
        fields = {name: getattr(self, field) for name, field in self.CONFIG_FIELDS.items()}
        return {**Optimizer.get_config(self), **hyperparams, "decay": self._initial_decay, **fields}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        return super(RuleOptimizer, cls).from_config(config, custom_objects)

    def _adapted_weights(self, weights: list[object]) -> list[object]:
        """Return the weights to set; 0 iterations are prepended if an old checkpoint lacks them."""
        if self.MAY_LACK_ITERATIONS and len(self._weights) == len(weights) + 1:
            return [np.array(0), *weights]
        return weights

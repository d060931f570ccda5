"""Hyperparameters as attributes of an optimizer, and the learning rate of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base import scalars
from thalweg._base.execution_context import (
    current_session,
    is_deferred,
    is_symbolic,
)
from thalweg._core.graph_mode import graph_mode
from thalweg._core.hyperparameters import Hyperparameters, as_hyper, is_function, is_number
from thalweg._core.step_adapter import Dtype
from thalweg._engines import compute_dtype
from thalweg.errors import InvalidTypeError, NumericsWarning, warn
from thalweg.keras import backend
from thalweg.keras.optimizers.weights import Weights
from thalweg.schedules import LearningRateSchedule
from thalweg.schedules.base import FormulaSchedule
from thalweg.schedules.formulas import inverse_time
from thalweg.schedules.serialization import serialize
from thalweg.variable import as_dtype, numpy_value, to_tensor

# Attributes of torch.optim.Optimizer that users and trainers try, with the alternative.
_TORCH = {
    "add_param_group": ". Variables are those that steps are given.",
    "defaults": ". Hyperparameters are attributes.",
    "param_groups": ". Give several optimizers their own variables.",
    "state": ". get_slot(variable, name) is what it remembers.",
    "step": ". Call minimize(loss, variables), or apply_gradients(gradients_and_variables).",
    "zero_grad": ". It keeps no gradients: call zero_grad() of the module.",
}


def _name_torch_class(kind: type) -> str:
    """Return a phrase for errors that names the class of `thalweg.optim` with the same update."""
    class_names = [cls.__name__ for cls in kind.__mro__ if cls.__module__.startswith(_PACKAGE)]
    name = class_names[0] if class_names else "Optimizer"
    if name in ("Optimizer", "RuleOptimizer"):
        return "one of thalweg.optim"
    return f"thalweg.optim.tensorflow.{name}, which has the same numbers"


_PACKAGE = "thalweg.keras.optimizers."


class Hypers(Weights):
    """Base class of `Optimizer` that stores hyperparameters and reads them as attributes."""

    _initial_decay: float

    def __init__(self) -> None:
        self._hyper = Hyperparameters()
        super().__init__()

    def _set_hyper(self, name: str, value: Any) -> None:
        """Set or change a hyperparameter to a number, tensor, callable or schedule.

        If the hyperparameter is a variable, assign `value` to it, in graph mode by the session.
        """
        if name in vars(self).get("_deferred_dependencies", ()):
            # The new value takes precedence over a restored value that is still pending.
            if is_number(value):
                self._create_hypers()
            else:
                self._release(name)
        self._hyper.set(name, value, backend.set_value)

    def _get_hyper(self, name: str, dtype: Any = None) -> Any:
        """Return the present value of a hyperparameter; create missing hyperparameter variables.

        A schedule is returned unchanged; a callable is called. In eager mode, return a 0-d CPU
        tensor of `dtype`; without `dtype`, the stored number or variable. In graph mode, return a
        graph tensor. In a hook that a session runs, return a tensor with the value in this run.
        """
        self._create_hypers()
        value: Any = self._hyper.now(name)
        if isinstance(value, LearningRateSchedule):
            return value
        if is_symbolic(value):
            return value if dtype is None else value.to(as_dtype(dtype))
        if dtype is None:
            return value if current_session() is None else to_tensor(value)
        kind = as_dtype(dtype)
        if not kind.is_floating_point:
            return to_tensor(value).detach().to(kind)
        scalar = scalars.as_scalar(value, compute_dtype(kind))
        return torch.tensor(scalar, dtype=kind, device="cpu")

    def _create_hypers(self) -> None:
        """Create the variables of hyperparameters, if they have any."""
        for name, variable in self._hyper.create(self._make_variable).items():
            self._handle_deferred_dependencies(name=name, trackable=variable)

    def _own_children(self) -> dict[str, object]:
        """Return `iter` and the hyperparameters that are variables, by name."""
        return {**super()._own_children(), **self._hyper.variables()}

    def _serialize_hyperparameter(self, name: str) -> object:
        """Return a hyperparameter for `get_config`: a JSON number or the config of a schedule.

        A graph variable is read in the session. Without a session, return the variable's initial
        value.
        """
        value: Any = self._hyper.now(name)
        if isinstance(value, LearningRateSchedule):
            return serialize(value)
        if isinstance(value, Tensor):
            value = numpy_value(value)
        elif is_symbolic(value) and not is_function(self._hyper.raw(name)):
            value = graph_mode().config_value(value)
        # numpy.float64 is a float: keep it, as it makes a hyperparameter of float64.
        is_numpy_scalar = isinstance(value, np.generic) and not isinstance(value, float)
        return value.item() if is_numpy_scalar else value

    def __getattr__(self, name: str) -> Any:
        # Not `self._hyper`, which is missing before `__init__` and would be looked up here again.
        hyper = self.__dict__.get("_hyper")
        key = "learning_rate" if name == "lr" else name
        if hyper is not None and key in hyper:
            return self._get_hyper(key)
        hint = _TORCH.get(name, "")
        if hint:
            alternative = _name_torch_class(type(self))
            hint += f" For what asks for an optimizer of torch, use {alternative}."
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'{hint}")

    def __setattr__(self, name: str, value: object) -> None:
        """Set a hyperparameter, or any other attribute; warn if `decay` is set."""
        hyper = self.__dict__.get("_hyper")
        key = "learning_rate" if name == "lr" else name
        if hyper is None or key not in hyper:
            super().__setattr__(name, value)
            return
        if key == "decay":
            warn(
                f"Setting decay of '{self._name}' has no effect, as in TensorFlow: the"
                f" {self._initial_decay} given to the constructor stays in force.",
                NumericsWarning,
            )
        self._set_hyper(key, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._hyper, "lr"})

    def _scalar(self, name: str, dtype: Dtype) -> Any:
        """Return a hyperparameter's value in this step as a NumPy scalar of type `dtype`.

        A callable is called once per step. Raise InvalidTypeError if a hyperparameter other than
        the learning rate is a schedule.
        """
        if name != "learning_rate" and isinstance(self._hyper.raw(name), LearningRateSchedule):
            raise InvalidTypeError(
                f"{name} cannot be a schedule; only learning_rate can. Give a callable without"
                " arguments."
            )
        return self._hyper.scalar(name, dtype, self.iterations)

    def _learning_rate(self, dtype: Dtype) -> object:
        """Return the learning rate of this step, after schedule and decay."""
        rate = self._scalar("learning_rate", dtype)
        return self._decayed(rate, dtype, self.iterations.item()) if self._initial_decay else rate

    def _rate_at(self, dtype: Dtype, count: int) -> object:
        """Return the learning rate, with `decay`, of the step after `count` steps.

        `learning_rate` must be a number, a tensor or a `FormulaSchedule`.
        """
        rate = self._hyper.raw("learning_rate")
        if isinstance(rate, FormulaSchedule):
            rate = as_hyper(rate.formula(dtype(count)), dtype)
        else:
            rate = self._scalar("learning_rate", dtype)
        return self._decayed(rate, dtype, count)

    def _decayed(self, rate: Any, dtype: Dtype, count: float) -> object:
        """Return `rate` / (1 + `decay` * `count`), with the constructor's `decay`.

        If `decay` is 0, return `rate` unchanged.
        """
        if not self._initial_decay > 0:
            return rate
        decay = as_hyper(self._initial_decay, dtype)  # pyright: ignore
        rate = inverse_time(rate, dtype(count), 1, decay, staircase=False)  # pyright: ignore
        return as_hyper(rate, dtype)  # pyright: ignore

    def _decayed_lr(self, var_dtype: object) -> Tensor:
        """Return the learning rate of this step as a 0-d CPU tensor, for subclasses' hooks.

        While a graph is built, return a tensor of the graph.
        """
        dtype = as_dtype(var_dtype)
        if is_deferred():
            return graph_mode().learning_rate(self, dtype)
        rate = self._learning_rate(compute_dtype(dtype))
        return torch.tensor(rate, dtype=dtype, device="cpu")

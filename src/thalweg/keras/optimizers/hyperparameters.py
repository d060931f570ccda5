"""Hyperparameters as attributes of an optimizer, and the learning rate of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base import scalars
from thalweg._base.execution_context import (
    current_session,
    executing_eagerly,
    is_deferred,
    is_symbolic,
)
from thalweg._core.graph_mode import graph_mode
from thalweg._core.hyperparameters import Hyperparameters, as_hyper, is_function, is_number
from thalweg._core.trackable import TrackableSlots
from thalweg._engines import compute_dtype
from thalweg.errors import InvalidTypeError, NumericsWarning, warn
from thalweg.keras import backend
from thalweg.schedules import LearningRateSchedule
from thalweg.schedules.base import FormulaSchedule
from thalweg.schedules.formulas import inverse_time
from thalweg.schedules.serialization import serialize
from thalweg.variable import Variable, as_dtype, numpy_value, to_tensor

# What people of torch.optim look for, and what its schedulers and trainers around it ask for.
_TORCH = {
    "add_param_group": ". Variables are those that steps are given.",
    "defaults": ". Hyperparameters are attributes.",
    "param_groups": ". Give several optimizers their own variables.",
    "state": ". get_slot(variable, name) is what it remembers.",
    "step": ". Call minimize(loss, variables), or apply_gradients(gradients_and_variables).",
    "zero_grad": ". It keeps no gradients: call zero_grad() of the module.",
}


def _in_torchs_form(kind: type) -> str:
    """The class in torch's form with the same numbers, of a class of Keras or what derives of it.

    Schedulers of torch, and trainers, take no other: they ask for `torch.optim.Optimizer`.
    """
    own = [each.__name__ for each in kind.__mro__ if each.__module__.startswith(_PACKAGE)]
    name = own[0] if own else "Optimizer"
    if name in ("Optimizer", "RuleOptimizer"):
        return "one of thalweg.optim"
    return f"thalweg.optim.tensorflow.{name}, which has the same numbers"


_PACKAGE = "thalweg.keras.optimizers."


class Hypers(TrackableSlots):
    """The part of `Optimizer` that keeps hyperparameters."""

    _name: str
    _initial_decay: float
    iterations: Tensor

    def __init__(self) -> None:
        self._hyper = Hyperparameters()

    def _set_hyper(self, name: str, value: Any) -> None:
        """Set or change a hyperparameter: a number, tensor, callable or schedule.

        One that is a variable is given the value: in graph mode in the session, see
        `tf.keras.backend.set_value`.
        """
        if name in vars(self).get("_deferred_dependencies", ()):
            # What is set now counts, not what was restored before and waits.
            if is_number(value):
                self._create_hypers()
            else:
                self._release(name)
        self._hyper.set(name, value, backend.set_value)

    def _get_hyper(self, name: str, dtype: Any = None) -> Any:
        """The hyperparameter as its attribute gives it; as a `dtype` tensor if given.

        In a hook of a step that a session runs, it is what the step has read.
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
        number = scalars.as_scalar(value, compute_dtype(kind))
        return torch.tensor(number, dtype=kind, device="cpu")

    def _create_hypers(self) -> None:
        for name, made in self._hyper.create(self._make_variable).items():
            self._handle_deferred_dependencies(name=name, trackable=made)

    def _make_variable(self, name: str, initial_value: object) -> Variable | None:
        """A variable of the optimizer that is not trained.

        In graph mode it is one of the graph, named below the current name scope.
        """
        if executing_eagerly():
            title = f"{self._name}/{name}"
            return Variable(self._begun(name, initial_value), title, trainable=False)
        return graph_mode().variable(initial_value, name)

    def _serialize_hyperparameter(self, name: str) -> object:
        """What `get_config` writes: a number that JSON knows, or the config of a schedule.

        In graph mode the value of a variable is that of the session, or its first if none is known.
        """
        value: Any = self._hyper.now(name)
        if isinstance(value, LearningRateSchedule):
            return serialize(value)
        if isinstance(value, Tensor):
            value = numpy_value(value)
        elif is_symbolic(value) and not is_function(self._hyper.raw(name)):
            value = graph_mode().config_value(value)
        # A numpy.float64 is a float, and makes a hyperparameter of float64.
        is_odd = isinstance(value, np.generic) and not isinstance(value, float)
        return value.item() if is_odd else value

    def __getattr__(self, name: str) -> Any:
        hyper = self.__dict__.get("_hyper")
        key = "learning_rate" if name == "lr" else name
        if hyper is not None and key in hyper:
            return self._get_hyper(key)
        hint = _TORCH.get(name, "")
        if hint:
            own = _in_torchs_form(type(self))
            hint += f" For what asks for an optimizer of torch, use {own}."
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'{hint}")

    def __setattr__(self, name: str, value: object) -> None:
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

    def _scalar(self, name: str, dtype: type[np.floating]) -> Any:
        """A hyperparameter as a scalar of a compute dtype; a callable is called once per step."""
        if name != "learning_rate" and isinstance(self._hyper.raw(name), LearningRateSchedule):
            raise InvalidTypeError(
                f"{name} cannot be a schedule; only learning_rate can. Give a callable without"
                " arguments."
            )
        return self._hyper.scalar(name, dtype, self.iterations)

    def _learning_rate(self, dtype: type[np.floating]) -> object:
        """Return the learning rate of this step, after schedule and decay."""
        rate = self._scalar("learning_rate", dtype)
        return self._decayed(rate, dtype, self.iterations.item()) if self._initial_decay else rate

    def _rate_at(self, dtype: type[np.floating], count: int) -> object:
        """Return `_learning_rate` of the step that follows `count` others.

        The learning rate is a number, a tensor, or a schedule given by a formula.
        """
        rate = self._hyper.raw("learning_rate")
        if isinstance(rate, FormulaSchedule):
            rate = as_hyper(rate.formula(dtype(count)), dtype)
        else:
            rate = self._scalar("learning_rate", dtype)
        return self._decayed(rate, dtype, count)

    def _decayed(self, rate: Any, dtype: type[np.floating], count: float) -> object:
        """Return a learning rate after the constructor's `decay` over `count` steps."""
        if not self._initial_decay > 0:
            return rate
        decay = as_hyper(self._initial_decay, dtype)  # pyright: ignore
        rate = inverse_time(rate, dtype(count), 1, decay, staircase=False)  # pyright: ignore
        return as_hyper(rate, dtype)  # pyright: ignore

    def _decayed_lr(self, var_dtype: object) -> Tensor:
        """The learning rate of this step as a 0-d tensor, for subclasses' own arithmetic.

        While a graph is built, it is a tensor of the graph.
        """
        dtype = as_dtype(var_dtype)
        if is_deferred():
            return graph_mode().learning_rate(self, dtype)
        rate = self._learning_rate(compute_dtype(dtype))
        return torch.tensor(rate, dtype=dtype, device="cpu")

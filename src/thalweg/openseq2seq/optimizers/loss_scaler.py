"""Algorithms of loss scaling, with named state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg._core.atomic_section import run
from thalweg._core.gradient_transforms import Decision
from thalweg._core.options.loss_scale_policies import Policy, State, answer
from thalweg._core.state import Entry, check_eager, fitting, restore, snapshot
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.openseq2seq.params import Kind, check_params
from thalweg.v1.train.state_dict import tensors_of
from thalweg.variable import Variable

_LOWEST = {"iteration": 0, "last_overflow_iteration": -1}


class LossScaler:
    """Base class of loss-scaling algorithms, which adapt the factor of the loss to gradients.

    The state is variables of the current graph, or eager variables. A subclass defines `DEFAULTS`,
    `_initial` and `_policy`.

    Attributes:
        DEFAULTS: {parameter: default}; a parameter must have the type of its default.
        READS_AMAX: Whether a finite magnitude matters to the algorithm.
    """

    DEFAULTS: Mapping[str, float | int] = {}
    READS_AMAX = False

    def __init__(self, params: Mapping[str, Any] | None = None, as_shipped: bool = False) -> None:
        if not isinstance(params or {}, Mapping):
            raise InvalidTypeError(
                f"The parameters of {type(self).__name__} must be a dict, not {show_value(params)}."
            )
        options = dict(params or {})
        kinds: dict[str, Kind] = {name: type(value) for name, value in self.DEFAULTS.items()}
        check_params(options, {}, kinds)
        self._params: dict[str, Any] = {**self.DEFAULTS, **options}
        self._as_shipped = as_shipped
        self._in_graph = not _graph.executing_eagerly()
        make: Any = _graph.make_variable if self._in_graph else partial(Variable, trainable=False)
        self._variables: dict[str, Any] = {
            name: make(value, name=f"{type(self).__name__}/{name}")
            for name, value in self._initial().items()
        }

    def _arguments(self) -> dict[str, object]:
        return {"params": self._params, "as_shipped": self._as_shipped}

    def _initial(self) -> State:
        """Return the state before the first update, by name."""
        raise NotImplementedError

    def _policy(self) -> Policy:
        """Return the function that computes the next state."""
        raise NotImplementedError

    @property
    def loss_scale(self) -> Any:
        """The variable that holds the factor, float32 of shape ()."""
        return _graph.resolve(self._variables["scale"])

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of the state by name."""
        return {name: _graph.resolve(variable) for name, variable in self._variables.items()}

    def update_op(self, has_nan: object, amax: object) -> Any:
        """Update the scale from the gradients of a step. Call this method once for each step.

        Args:
            has_nan: True if a gradient is NaN: a bool, or a tensor of shape ().
            amax: The largest magnitude in all unscaled gradients. NaN counts as an overflow.

        Returns:
            The number of updates so far, an int64 tensor of shape (). In graph mode the tensor is
            symbolic, and each run of the tensor makes an update.
        """
        if not self._in_graph:
            return self._update(self.variables, has_nan, amax)
        references = {
            name: _graph.by_reference(variable) for name, variable in self._variables.items()
        }
        return _graph.operation(
            self._update,
            [references, has_nan, amax],
            f"{type(self).__name__}/update",
            outputs=_graph.Output(torch.int64, ()),
        )

    def decide(self, has_nan: object, amax: object) -> Decision:
        """Return the decision to take or skip a step, with calls that write the next state.

        Nothing is written yet. If the arguments are on a device, the state is moved there.
        """
        return answer(self._policy(), self.variables, has_nan, amax, in_float32=True)

    def _update(self, variables: Mapping[str, Tensor], has_nan: object, amax: object) -> Tensor:
        # A float64 magnitude beyond the range of float32 counts as infinite.
        with np.errstate(over="ignore"):
            largest = np.float32(_number("amax", amax))
        run(answer(self._policy(), variables, bool(_number("has_nan", has_nan)), largest).calls)
        return variables["iteration"].detach().clone()

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the state by name.

        Raises:
            FailedPreconditionError: The state is variables of a graph, which `Saver` saves.
        """
        return snapshot(self.entries())

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Set the state from `state_dict()`; all or nothing.

        Raises:
            CheckpointMismatchError: Names, shapes or dtypes differ, as with another algorithm.
            FailedPreconditionError: The state is variables of a graph, which `Saver` restores.
        """
        restore(fitting(self.entries(), tensors_of(state_dict), type(self).__name__))

    def entries(self, scope: str = "") -> list[Entry]:
        """Return one `Entry` (a named tensor) per variable of the state; names begin with `scope`.

        Raises:
            FailedPreconditionError: The variables are of a graph; save them with `Saver`.
        """
        variables = self.variables
        check_eager(f"The state of this {type(self).__name__}", variables.values())
        return [
            Entry(scope + name, variables[name], lowest=_LOWEST.get(name)) for name in variables
        ]


def _number(name: str, value: object) -> Any:
    """Return a bool or number, also from a tensor or array of shape ().

    For other values raise InvalidTypeError, or InvalidArgumentError for another shape, with `name`.
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        if value.shape != ():
            raise InvalidArgumentError(f"{name} must be a scalar, not of shape {value.shape}.")
        value = value[()]
    if not isinstance(value, (bool, int, float, np.number, np.bool)):
        raise InvalidTypeError(
            f"{name} must be a number or tensor of shape (), not {show_value(value)}."
        )
    return value

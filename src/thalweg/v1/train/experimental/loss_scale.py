"""Loss scales: factors of a loss that prevent 16-bit gradients from underflowing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg._core.atomic_section import run
from thalweg._core.gradient_transforms import Decision
from thalweg._core.grads_and_vars import concrete
from thalweg._core.nest import leaves_of
from thalweg._core.options.loss_scale_policies import Policy, answer, dynamic
from thalweg._core.trackable import Trackable
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import values_of
from thalweg.variable import check_held


class LossScale(Trackable, ABC):
    """Base class: derive from it and define `__call__`, `update` and `get_config`.

    Reference: tf.train.experimental.LossScale
    """

    def __init__(self) -> None:
        self._maybe_initialize_trackable()
        self._weights: dict[str, Any] = {}

    @abstractmethod
    def __call__(self) -> Any:
        """Return the scale as a float32 tensor of shape ()."""

    @abstractmethod
    def update(self, grads: object) -> tuple[Any, Any]:
        """Change the scale according to the gradients of a step; subclasses define this method.

        Args:
            grads: Gradients in lists, which may be nested. None counts as finite.

        Returns:
            (operation, should_apply). In graph mode, the operation changes the scale in each run.
            In eager mode, the scale is already changed, and the operation is None. `should_apply`
            is a bool or a bool tensor: True to apply the gradients.
        """

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return a new loss scale from a result of `get_config`."""
        return cls(**config)

    def _add_weight(self, name: str, initial_value: object, dtype: object = None) -> Any:
        """Return a new untrained variable, which checkpoints save under the name `name`."""
        variable = _graph.Variable(initial_value, trainable=False, name=name, dtype=dtype)
        self._weights[name] = variable
        return self._track_trackable(variable, name)


class FixedLossScale(LossScale):
    """Constant loss scale.

    Args:
        loss_scale_value: 1 or more.

    Raises:
        ValueError: `loss_scale_value` is below 1.

    Reference: tf.train.experimental.FixedLossScale
    """

    def __init__(self, loss_scale_value: object) -> None:
        super().__init__()
        if not isinstance(loss_scale_value, int | float):
            raise InvalidArgumentError("loss_scale_value must be a Python int or float.")
        if loss_scale_value < 1:
            raise InvalidArgumentError("loss_scale_value must be at least 1.")
        self._loss_scale_value = float(loss_scale_value)

    def __call__(self) -> Any:
        return _graph.convert_to_tensor(self._loss_scale_value)

    def update(self, grads: object) -> tuple[Any, bool]:
        if _graph.executing_eagerly():
            return None, True
        return _graph.operation(lambda: None, [], "update_loss_scale", kind="pure"), True

    def get_config(self) -> dict[str, Any]:
        return {"loss_scale_value": self._loss_scale_value}

    def __repr__(self) -> str:
        return f"FixedLossScale({self._loss_scale_value})"


class DynamicLossScale(LossScale):
    """Loss scale that shrinks on infinite or NaN gradients and grows after many finite steps.

        not finite:                     scale <- max(scale / multiplier, 1)
        increment_period finite steps:  scale <- scale multiplier, unless infinite

    Args:
        initial_loss_scale: The initial scale.
        increment_period: Number of finite steps in a row before the scale grows.
        multiplier: Factor by which the scale grows or shrinks.

    Reference: tf.train.experimental.DynamicLossScale
    """

    def __init__(
        self,
        initial_loss_scale: float = 2**15,
        increment_period: int = 2000,
        multiplier: float = 2.0,
    ) -> None:
        super().__init__()
        self._initial_loss_scale = float(initial_loss_scale)
        self._increment_period = int(increment_period)
        self._multiplier = float(multiplier)
        self._current_loss_scale = self._add_weight(
            "current_loss_scale", self._initial_loss_scale, torch.float32
        )
        self._num_good_steps = self._add_weight("good_steps", 0, torch.int64)

    @property
    def initial_loss_scale(self) -> float:
        """Initial value of the scale."""
        return self._initial_loss_scale

    @property
    def increment_period(self) -> int:
        """Number of finite steps in a row after which the scale rises."""
        return self._increment_period

    @property
    def multiplier(self) -> float:
        """Factor by which the scale rises."""
        return self._multiplier

    def __call__(self) -> Any:
        return _graph.convert_to_tensor(_graph.resolve(self._current_loss_scale).read_value())

    def update(self, grads: object) -> tuple[Any, Any]:
        """Shrink the scale if a gradient is not finite; grow it after many finite steps in a row.

        See `LossScale.update` for argument and result.
        """
        gradients = [grad for grad in leaves_of(grads) if grad is not None]
        if _graph.executing_eagerly():
            finite = _are_finite(gradients)
            # An infinite gradient counts as NaN, so that the largest magnitude is not needed.
            run(self.decide(not finite, 0.0).calls)
            return None, finite
        output = _graph.Output(torch.bool, (), ())
        finite = _graph.operation(
            _are_finite, [gradients], "is_finite", kind="pure", outputs=output
        )
        state_references = {name: _graph.by_reference(var) for name, var in self._weights.items()}
        scale = _graph.Output(torch.float32, (), ())
        return _graph.operation(
            self._move_scale, [finite, state_references], "update_loss_scale", outputs=scale
        ), finite

    def decide(self, has_nan: object, amax: object) -> Decision:
        """Return a `Decision`: True to take the step, and functions that write the next scale.

        Args:
            has_nan: A bool or a bool tensor: True if a gradient is NaN.
            amax: A float or a tensor: the largest magnitude in all gradients.
        """
        state = {name: _graph.resolve(var) for name, var in self._weights.items()}
        return answer(self._policy(), state, has_nan, amax)

    def _move_scale(self, finite: torch.Tensor, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        run(answer(self._policy(), state, not finite, 0.0).calls)
        return state["current_loss_scale"].detach().clone()

    def _policy(self) -> Policy:
        period = self._increment_period
        return partial(dynamic, multiplier=self._multiplier, increment_period=period)

    def get_config(self) -> dict[str, Any]:
        return {
            "initial_loss_scale": self.initial_loss_scale,
            "increment_period": self.increment_period,
            "multiplier": self.multiplier,
        }

    def __repr__(self) -> str:
        current_state = ""
        if not isinstance(self._current_loss_scale, _graph.GraphVariable):
            scale, steps = self._current_loss_scale.item(), self._num_good_steps.item()
            current_state = f"current_loss_scale={scale}, num_good_steps={steps}, "
        arguments = ", ".join(f"{name}={argument}" for name, argument in self.get_config().items())
        return f"DynamicLossScale({current_state}{arguments})"


def get(identifier: object) -> Any:
    """Return a new loss scale for a number or "dynamic"; return a `LossScale` or None unchanged.

    Raises:
        ValueError: `identifier` is anything else, or a number below 1.
    """
    # Checked first: comparing a NumPy number with "dynamic" would be a comparison of arrays.
    if isinstance(identifier, int | float):
        return FixedLossScale(identifier)
    if identifier == "dynamic":
        return DynamicLossScale()
    if identifier is None or isinstance(identifier, LossScale):
        return identifier
    raise InvalidArgumentError(
        f"Could not interpret loss scale identifier: {show_value(identifier)}"
    )


def _are_finite(grads: Iterable[object]) -> torch.Tensor:
    """Return True if all elements of all gradients are finite."""
    tensors = [values_of(eager) for grad in grads if (eager := concrete(grad)) is not None]
    for values in tensors:
        check_held(values, f"A gradient of shape {tuple(values.shape)}")
    finite_flags = [torch.isfinite(values).all() for values in tensors]
    if not finite_flags:
        return torch.tensor(True, dtype=torch.bool, device="cpu")
    return torch.stack(finite_flags).all()

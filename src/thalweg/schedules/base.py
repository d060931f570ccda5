"""Base class of learning-rate schedules: functions of the step that can be written to a config."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from thalweg._base.execution_context import graph_of
from thalweg._base.scalars import (
    Number,
    Scalar,
    ScalarType,
    as_operand,
    as_scalar,
    is_floating,
    scalar_type,
)
from thalweg._base.showing import show_value
from thalweg._base.tracing import untraced
from thalweg._core.nest import leaves_of
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import as_dtype

if TYPE_CHECKING:
    from typing import Self

Step = Number


class LearningRateSchedule:
    """A learning rate that depends on the step.

    Derive from this class, and override `__call__` and, to make the schedule serializable,
    `get_config`.

    Example:
        >>> class Inverse(LearningRateSchedule):
        ...     def __init__(self, initial_learning_rate):
        ...         self.initial_learning_rate = initial_learning_rate
        ...
        ...     def __call__(self, step):
        ...         return self.initial_learning_rate / (step + 1)
        ...
        ...     def get_config(self):
        ...         return {"initial_learning_rate": self.initial_learning_rate}
        >>> Inverse(0.5)(4)
        0.1

    Reference: `tf.keras.optimizers.schedules.LearningRateSchedule`
    """

    def __call__(self, step: Step) -> torch.Tensor | float:
        """The learning rate at `step`, 0 at the first."""
        raise NotImplementedError(
            f"Learning rate schedule '{type(self).__name__}' must override `__call__(self, step)`."
        )

    def value(self, step: Step) -> Scalar:
        """Return the learning rate at `step` as a NumPy scalar, for optimizers.

        `__call__` receives the step as a tensor, and may return a number or a tensor.

        Raises:
            InvalidTypeError: `__call__` returned something else.
            InvalidArgumentError: `__call__` returned an integer too large for a float.
        """
        result = self(_as_tensor(step))
        try:
            return as_operand(result, scalar_type(result))
        except OverflowError:
            raise InvalidArgumentError(
                f"{type(self).__name__} is too large to be a rate."
            ) from None
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidTypeError(
                f"{type(self).__name__} must return a number or a tensor of shape (), not"
                f" {show_value(result)}."
            ) from error

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, by name."""
        raise NotImplementedError(
            f"Learning rate schedule '{type(self).__name__}' must override `get_config()` "
            "in order to be serializable."
        )

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return a schedule constructed with the arguments in `config`."""
        return cls(**config)


@dataclass(eq=False)
class FormulaSchedule(LearningRateSchedule):
    """A schedule given by a formula on NumPy scalars. The fields are the config.

    The fields are read at every step, and may be changed during training.
    """

    def __post_init__(self) -> None:
        rate: Any = getattr(self, "initial_learning_rate", 0.0)
        if not is_floating(rate):
            raise TypeError(
                f"{type(self).__name__}: initial_learning_rate must be a float, or a float32 or "
                f"float64 scalar; received {show_value(rate)} ({type(rate).__name__}). "
                "The schedule computes in its dtype."
            )

    def formula(self, step: Step) -> Scalar:
        """Return the learning rate at `step`, in TensorFlow's order of operations."""
        raise NotImplementedError(f"'{type(self).__name__}' must override `formula(self, step)`.")

    def _kind(self) -> ScalarType:
        """The type of the learning rate."""
        return kind_of([getattr(self, "initial_learning_rate", 0.0)])

    @untraced
    def __call__(self, step: Step) -> Any:
        """Return the learning rate at `step` as a 0-d tensor on the CPU.

        While a TensorFlow 1 graph is built, or if `step` is a tensor of a graph, return a tensor of
        the graph.
        """
        fields = self._own()
        graph = graph_of(*leaves_of([step, fields]))
        if graph is not None:
            return self._recorded(graph, step, fields)
        with np.errstate(all="ignore"):
            rate = self.formula(step)
        return torch.tensor(rate, dtype=as_dtype(rate.dtype), device="cpu")

    @untraced
    def value(self, step: Step) -> Scalar:
        """Return the learning rate at `step` as a NumPy scalar; no tensor is made."""
        # A subclass may override `__call__` alone.
        if type(self).__call__ is not FormulaSchedule.__call__:
            return super().value(step)
        with np.errstate(all="ignore"):
            return self.formula(step)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, by name."""
        return self._own()

    def having(self, fields: Mapping[str, object]) -> Self:
        """Return a copy with some fields replaced; a random generator is shared with the copy."""
        duplicate = copy.copy(self)
        vars(duplicate).update(fields)
        return duplicate

    def _own(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _recorded(self, graph: Any, step: Step, fields: dict[str, Any]) -> object:
        """Return a new symbolic tensor of `graph`: the learning rate at `step`, computed in a run.

        `step` and the values of `fields`, {field of this schedule: value}, may be symbolic.
        """
        dtype = as_dtype(self._kind())

        def rate(count: Any, values: dict[str, Any]) -> torch.Tensor:
            if any(
                isinstance(leaf, torch.Tensor) and leaf.is_meta
                for leaf in leaves_of([count, values])
            ):
                return torch.empty((), dtype=dtype, device="meta")  # asked for its shape
            return self.having(values)(count)

        name = fields.get("name") or type(self).__name__
        return graph.call(rate, (step, fields), name=name)


def as_scalars(rate: Number, *numbers: Number) -> list[Any]:
    """Return the numbers as NumPy scalars of the type in which TensorFlow computes with `rate`."""
    dtype = scalar_type(rate)
    return [as_scalar(operand, dtype) for operand in (rate, *numbers)]


def kind_of(values: Iterable[object]) -> ScalarType:
    """Return float64 if a number or tensor, also of a graph, is float64; otherwise float32."""
    kinds = [str(getattr(value, "dtype", "")).removeprefix("torch.") for value in values]
    return np.float64 if "float64" in kinds else np.float32


def _as_tensor(step: Step) -> torch.Tensor:
    if isinstance(step, torch.Tensor):
        return step
    if type(step) is float:
        return torch.tensor(step, dtype=torch.float32, device="cpu")
    return torch.from_numpy(np.array(step))  # pyright: ignore[reportUnknownMemberType]

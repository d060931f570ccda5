"""Hyperparameters as TensorFlow keeps them: numbers that become variables, callables, schedules."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.scalars import ScalarType, as_scalar
from thalweg.schedules import LearningRateSchedule
from thalweg.variable import Variable, dtype_name


def is_number(value: object) -> bool:
    """Whether the value is a plain Python or NumPy number."""
    return isinstance(value, numbers.Number | np.number)


def is_on(value: Any) -> bool:
    """Whether a momentum makes a slot: a number above 0, or any tensor or callable."""
    return bool(value > 0) if is_number(value) else True


def check_fraction(name: str, value: Any) -> None:
    """Refuse a number outside [0, 1].

    Raises:
        ValueError: It is outside; names it.
    """
    if is_number(value) and not 0 <= value <= 1:
        raise ValueError(f"`{name}` must be between [0, 1]. Received: {name}={value}")


class Hyperparameters:
    """The hyperparameters of one optimizer, by name.

    A plain number is kept as given until the first use; then `create` makes it a scalar variable:
    float32 for a Python float, int32 for an int, float64 for a numpy.float64. Tensors, variables,
    callables and schedules stay what they are.

    Attributes:
        created: Whether numbers have become variables.
        calls: Whether there is a callable or a schedule among them.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self.created = False
        self.calls = False

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def raw(self, name: str) -> Any:
        """The value as it is kept now."""
        return self._values[name]

    def set(self, name: str, value: Any) -> None:
        """Set or change a hyperparameter.

        Raises:
            TypeError: A callable is set over a variable.
            InvalidTypeError: A fraction is set over an integer variable.
            InvalidArgumentError: The value is not a scalar.
        """
        shape = getattr(value, "shape", ())
        if tuple(shape) != () and not callable(value):
            raise InvalidArgumentError(f"{name} must be a scalar, not of shape {tuple(shape)}.")
        if isinstance(value, np.ndarray):
            value = value[()]
        old = self._values.get(name)
        if not (self.created and isinstance(old, Variable)) or isinstance(
            value, LearningRateSchedule
        ):
            self._values[name] = value
        elif callable(value) and not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{name} is a variable by now and cannot become the callable {value!r}. Give the"
                " callable to the constructor, or set a number."
            )
        else:
            number = value.item() if isinstance(value, torch.Tensor | np.generic) else value
            if not old.is_floating_point() and not float(number).is_integer():
                raise InvalidTypeError(
                    f"{name} was given as a whole number and is an {dtype_name(old.dtype)} variable"
                    f" by now, which cannot become {number!r}. Give a float to the constructor."
                )
            old.assign(number)
        self.calls = any(
            callable(each) and not isinstance(each, torch.Tensor) for each in self._values.values()
        )

    def create(self, scope: str) -> None:
        """Make scalar variables `scope/name` of plain numbers, in alphabetical order."""
        if self.created:
            return
        for name in sorted(self._values):
            value = self._values[name]
            if is_number(value):
                self._values[name] = Variable(value, name=f"{scope}/{name}", trainable=False)
        self.created = True

    def scalar(self, name: str, dtype: ScalarType) -> Any:
        """The value now as a scalar of `dtype`, converted as TensorFlow does; calls callables."""
        value: Any = self._values[name]
        if callable(value) and not isinstance(value, torch.Tensor):
            value = value()
        return as_scalar(value, dtype)

    def numbers(self) -> dict[str, int | float]:
        """The values of hyperparameters that are plain numbers or variables made of them."""
        found: dict[str, int | float] = {}
        for name, value in self._values.items():
            if isinstance(value, Variable) and self.created:
                found[name] = value.item()
            elif is_number(value):
                found[name] = value.item() if isinstance(value, np.generic) else value  # pyright: ignore
        return found

    def accepts(self, name: str, value: Any) -> bool:
        """Whether `restore` can take the value."""
        if not isinstance(value, int | float):
            return False
        old = self._values[name]
        is_integer = isinstance(old, Variable) and not old.is_floating_point()
        return not is_integer or float(value).is_integer()

    def restore(self, name: str, value: int | float) -> None:
        """Set a number over a number; schedules, callables and tensors stay in force."""
        if name in self.numbers():
            old = self._values[name]
            self.set(name, type(old)(value) if isinstance(old, np.generic) else value)

    def __copy__(self) -> Hyperparameters:
        copied = Hyperparameters()
        copied._values.update(self._values)
        copied.created = self.created
        return copied

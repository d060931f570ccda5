"""Hyperparameters of TensorFlow's optimizers: numbers, variables, callables and schedules."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import torch

from thalweg._base.context_managers import ContextSetting
from thalweg._base.execution_context import SessionVariable, SymbolicVariable, is_symbolic, resolve
from thalweg._base.scalars import ScalarType, as_scalar, scalar_type
from thalweg._base.showing import show_value
from thalweg._engines import current
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.schedules.base import LearningRateSchedule
from thalweg.variable import Variable, check_held, check_number, dtype_name, numpy_value, to_tensor

_TINY = float(np.finfo(np.float32).tiny)


def is_number(value: object) -> TypeGuard[int | float | np.integer[Any] | np.floating[Any]]:
    """Return True if a value is a real number of Python or NumPy."""
    return isinstance(value, int | float | np.integer | np.floating)


def _is_array(value: object) -> TypeGuard[npt.NDArray[Any]]:
    return isinstance(value, np.ndarray)


def _is_numpy_scalar(value: object) -> TypeGuard[np.generic[Any]]:
    return isinstance(value, np.generic)


def is_function(value: object) -> bool:
    """Return True for a callable or a schedule that is neither a tensor nor a module."""
    return callable(value) and not isinstance(value, torch.Tensor | torch.nn.Module)


def is_on(value: object) -> bool:
    """Return True if a momentum needs a slot: a number above 0, or any tensor or callable."""
    if _is_array(value):
        value = value[()]
    return bool(value > 0) if is_number(value) else True


def as_number(name: str, value: object) -> Any:
    """Return the number in `value`: a number, or the element of a tensor or array of shape ().

    The result is a NumPy scalar for float64 tensors and arrays, else a Python number.

    Raises:
        InvalidTypeError: The value is not a real number. The message contains `name`.
        InvalidArgumentError: The value is NaN, or an integer beyond the range of float64.
        LayoutError: The value is a tensor without memory for its element.
    """
    if (isinstance(value, torch.Tensor) or _is_array(value)) and value.ndim == 0:
        if isinstance(value, torch.Tensor):
            check_number(value, name)
        # TensorFlow converts a Python float to float32, but not a NumPy float64.
        is_double = scalar_type(value) is np.float64
        value = np.float64(value.item()) if is_double else value.item()
    if not is_number(value):
        raise InvalidTypeError(f"{name} must be a number, not {show_value(value)}.{hint(value)}")
    if value != value:
        raise InvalidArgumentError(f"{name} is nan.")
    check_size(name, value)
    return value


def check_size(name: str, value: object) -> None:
    """Raise InvalidArgumentError for an integer beyond the range of float64."""
    if isinstance(value, int):
        try:
            float(value)
        except OverflowError:
            raise InvalidArgumentError(f"{name} is too large: {show_value(value)}.") from None


def as_hyper(value: Any, dtype: ScalarType) -> Any:
    """Return a hyperparameter's value as a scalar of `dtype`, converted as TensorFlow does.

    A Python float is rounded to float32 first, even for float64. If the engine flushes denormals, a
    number that is denormal before or after the conversion becomes 0.
    """
    scalar = as_scalar(value, dtype)
    # The usual case first: no denormal is possible.
    if type(value) is float and value >= _TINY:
        return scalar
    if -_TINY < scalar < _TINY and scalar:
        return _flush_denormal(scalar, scalar_type(value), dtype)
    return scalar


def as_read(tensor: torch.Tensor, scalar: Any, dtype: ScalarType) -> Any:
    """Return the number that was read from a tensor as a scalar of `dtype`; see `as_hyper`."""
    if -_TINY < scalar < _TINY and scalar:
        return _flush_denormal(scalar, scalar_type(tensor), dtype)
    return dtype(scalar)


def _flush_denormal(scalar: Any, source: ScalarType, dtype: ScalarType) -> object:
    """Return a number of type `source` as `dtype`; 0 if it is a denormal to flush."""
    # The narrower of the two types decides what is denormal.
    limit = _TINY if np.float32 in (source, dtype) else float(np.finfo(np.float64).tiny)
    flushes = current().denormals == "flush" and abs(scalar) < limit
    return dtype(math.copysign(0.0, scalar) if flushes else scalar)


def as_step_scalar(name: str, value: object, dtype: ScalarType) -> Any:
    """Validate a value and return it as a scalar of `dtype`, converted by `as_hyper`.

    Raises:
        InvalidTypeError: The value is not a number. The message contains `name`.
        InvalidArgumentError: The value is an integer beyond the range of float64.
        LayoutError: The value is a tensor without memory for its element.
    """
    if isinstance(value, torch.Tensor) and not value.dim():
        check_number(value, name)
    try:
        return as_hyper(value, dtype)
    except OverflowError:
        raise InvalidArgumentError(f"{name} is too large: {show_value(value)}.") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(
            f"{name} must be a number, not {show_value(value)}.{hint(value)}"
        ) from error


def check_fraction(name: str, value: object) -> None:
    """Raise ValueError for a number outside [0, 1]; ignore tensors, callables and schedules."""
    if is_number(value) and not 0 <= value <= 1:
        raise ValueError(
            f"`{name}` must be between [0, 1]. Received: {name}={value} (of type {type(value)})."
        )


def check_value(name: str, value: object) -> Any:
    """Validate a hyperparameter's value, and return it. An array of shape () becomes a number.

    Callables, schedules and tensors of a graph are returned unchecked.

    Raises:
        InvalidTypeError, InvalidArgumentError: See `check_scalar`.
    """
    if is_function(value) or is_symbolic(value):
        return value
    accepted = "number, a tensor of shape (), a schedule or a callable without arguments"
    # `np.bool_` is not an `np.integer`, so `is_number` would reject it.
    if isinstance(value, np.bool_):
        return value == np.True_
    check_scalar(name, value, accepted)
    return value[()] if _is_array(value) else value


def check_scalar(name: str, value: object, accepted: str) -> None:
    """Raise an error unless `value` is a real number, or a real eager or graph tensor of shape ().

    Args:
        name: The hyperparameter's name, for the message.
        accepted: The text of the message after "must be a".

    Raises:
        InvalidTypeError: The value is not a number, is complex, or is on the meta device.
        InvalidArgumentError: The value has dimensions, is NaN, or is an integer beyond the range of
            float64.
        LayoutError: The value is a tensor without memory for its element.
    """
    # The unknown shape of a graph's tensor is false, like that of a scalar.
    if shape := getattr(value, "shape", None):
        raise InvalidArgumentError(f"{name} must be a scalar, not of shape {tuple(shape)}.")
    if is_symbolic(value):
        return
    if isinstance(value, torch.Tensor):
        if value.is_complex():
            raise InvalidTypeError(f"{name} must be real, not {dtype_name(value.dtype)}.")
        if value.is_meta:
            raise InvalidTypeError(f"{name} must have a value, not be on the meta device.")
        check_number(value, name)
        return
    scalar: Any = value[()] if _is_array(value) else value
    if not is_number(scalar):
        raise InvalidTypeError(
            f"{name} must be a {accepted}, not {show_value(value)}.{hint(value)}"
        )
    if scalar != scalar:
        raise InvalidArgumentError(f"{name} is nan.")
    check_size(name, scalar)


def _check_variable(name: str, value: int) -> None:
    """Raise InvalidArgumentError for an integer beyond the range of its int32 variable."""
    if not -(2**31) <= value < 2**31:
        raise InvalidArgumentError(
            f"{name} is a whole number, which becomes int32, and does not fit: {show_value(value)}."
            " Give a float."
        )


def hint(value: object) -> str:
    """Return advice if `value` is a graph tensor, a module or a list of tensors, else ""."""
    if is_symbolic(value):
        return " It belongs to a graph: fetch its value with Session.run."
    is_list = isinstance(value, list | tuple) and any(
        isinstance(item, torch.Tensor | dict) for item in cast("Sequence[Any]", value)
    )
    if is_list or isinstance(value, Iterator | torch.nn.Module | dict):
        return (
            " Variables go to minimize() or apply_gradients(), not to the constructor;"
            " thalweg.optim has optimizers that take them there."
        )
    return ""


def _in_kind_of(old: object, value: int | float) -> object:
    """Return a number converted to the type of `old`.

    Return a scalar of equal dtype for a NumPy scalar, and a truncated int for an integer tensor. If
    both arguments are ints, return an int. In all other cases return a float.

    Raises:
        OverflowError: The number is too large for the type.
    """
    if _is_numpy_scalar(old):
        return old.dtype.type(value)
    is_integer = isinstance(old, torch.Tensor) and not old.is_floating_point()
    if is_integer or (isinstance(value, int) and is_number(old) and not isinstance(old, float)):
        return int(value)
    return float(value)


# Classes that do not override `item`.
_READ_DIRECTLY = (Variable, SessionVariable)


class Hyperparameters(Mapping[str, Any]):
    """Hyperparameters of one optimizer, by name.

    At first use, `create` replaces plain numbers by scalar variables: float32 for a Python float,
    int32 for an int, float64 for a numpy.float64. In graph mode each session has a value of these
    variables. Tensors, variables, callables and schedules are not replaced.

    Attributes:
        created: True after `create` has replaced numbers by variables.
        calls: True if a value is a callable or a schedule.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        # Results of callables and schedules in the current step; None outside of a step.
        self._results: dict[Any, Any] | None = None
        # Values that the run of a graph has computed for its step.
        self._overrides: dict[object, object] = {}
        self.created = False
        self.calls = False

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __repr__(self) -> str:
        return repr(self._values)

    # `Mapping` defines `__eq__` by contents, which also removes the hash.
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def raw(self, name: str) -> Any:
        """Return the stored value: a number, tensor, variable, callable or schedule."""
        return self._values[name]

    def __enter__(self) -> None:
        """Begin a step, in which each callable and schedule is called once."""
        self._results = {}

    @property
    def is_begun(self) -> bool:
        """True from the beginning of a step to its end."""
        return self._results is not None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._results = None

    def set(self, name: str, value: Any, assign: Callable[[Any, Any], None]) -> None:
        """Set a hyperparameter to a new value, or assign a number to its variable.

        Args:
            value: A number, tensor, callable or schedule.
            assign: `assign(variable, number)` is called if the stored value is a variable.

        Raises:
            InvalidTypeError: The value is not allowed. A variable accepts no callable and no tensor
                of a graph, and an integer variable accepts no fraction.
            InvalidArgumentError: The value is not a scalar, is NaN, or is an int beyond the range
                of int32.
        """
        value = check_value(name, value)
        old: Any = self._values.get(name)
        is_variable: bool = isinstance(old, Variable | SymbolicVariable)
        if type(value) is int and not is_variable:
            _check_variable(name, value)
        if not is_variable or isinstance(value, LearningRateSchedule):
            self._values[name] = value
        elif is_function(value) or is_symbolic(value):
            kind = "tensor" if is_symbolic(value) else "callable"
            raise InvalidTypeError(
                f"{name} is a variable by now and cannot become the {kind} {value!r}. Give that"
                " to the constructor, or set a number."
            )
        else:
            is_tensor = isinstance(value, torch.Tensor)
            if is_tensor:
                check_held(value, name)
            new_value = value.item() if is_tensor or _is_numpy_scalar(value) else value
            dtype: torch.dtype = getattr(old, "dtype", None) or torch.float32
            is_integer = not dtype.is_floating_point
            if is_integer and not float(new_value).is_integer():
                raise InvalidTypeError(
                    f"{name} was given as a whole number and is an {dtype_name(dtype)} variable"
                    f" by now, which cannot become {new_value!r}. Give a float to the constructor."
                )
            assign(old, int(new_value) if is_integer else new_value)
        self.calls = any(map(is_function, self._values.values()))

    def all_of(self, results: dict[str, object]) -> dict[str, Any]:
        """Return the stored values by name; those in `results` replace the stored callables."""
        return {**self._values, **results}

    def called(self) -> dict[str, Any]:
        """Call each stored callable except schedules; return {name: result}.

        Raise an error for a result that is neither a scalar nor a tensor of a graph.
        """
        results: dict[str, Any] = {}
        for name, value in self._values.items():
            if is_function(value) and not isinstance(value, LearningRateSchedule):
                results[name] = value()
                if not is_symbolic(results[name]):
                    as_step_scalar(name, results[name], np.float64)
        return results

    def knowing(self, overrides: dict[object, object]) -> ContextSetting:
        """Return a block in which steps use given values, and call no callable or schedule.

        Args:
            overrides: Values by name, and those of schedules by (name, dtype).
        """
        return self._with_value("_overrides", overrides)

    def uncalled(self) -> ContextSetting:
        """Return a block in which callables and schedules are NaN, and are not called."""
        return self._with_value("_results", dict.fromkeys(self._values, math.nan))

    def _with_value(self, name: str, value: object) -> ContextSetting:
        """Return a block in which an attribute of `self` has another value."""
        change = partial(setattr, self, name)
        return ContextSetting(
            lambda: ([partial(change, value)], [partial(change, getattr(self, name))])
        )

    def create(self, make: Callable[[str, Any], object]) -> dict[str, Any]:
        """Replace plain numbers by variables, in alphabetical order; return {name: variable}.

        If this was done before, do nothing and return {}.

        Args:
            make: `make(name, number)` returns a new variable.
        """
        variables: dict[str, Any] = {}
        if not self.created:
            for name in sorted(self._values):
                if is_number(self._values[name]):
                    variables[name] = make(name, self._values[name])
            self._values.update(variables)
            self.created = True
        return variables

    def variables(self) -> dict[str, Any]:
        """Return the values that are variables, by name: of `create`, or set by the user."""
        kinds = (Variable, torch.nn.Parameter, SymbolicVariable)
        return {name: value for name, value in self._values.items() if isinstance(value, kinds)}

    def now(self, name: str) -> Any:
        """Return the current value of a hyperparameter, or the result of a callable.

        Within a step, the result is cached. A `LearningRateSchedule` is returned uncalled. For a
        graph tensor, return its value in the session run of this thread.
        """
        value = resolve(self._current_value(name))
        if not is_function(value) or isinstance(value, LearningRateSchedule):
            return value
        results = self._results
        if results is None:
            return value()
        if name not in results:
            results[name] = value()
        return results[name]

    def _current_value(self, name: str) -> object:
        """Return the value that a graph's run has computed, or the stored value."""
        value = self._overrides.get(name)
        return self._values[name] if value is None else value

    def scalar(self, name: str, dtype: ScalarType, step: torch.Tensor) -> Any:
        """Return the current value as a scalar of `dtype`, converted as TensorFlow does.

        Args:
            dtype: numpy.float32 or numpy.float64.
            step: The step count for a schedule, an integer tensor of shape ().

        Raises:
            InvalidTypeError: A callable or schedule did not return a number.
            InvalidArgumentError: A callable returned an integer beyond the range of float64.
        """
        value: Any = self._current_value(name)
        if type(value) is float:
            return as_hyper(value, dtype)
        if type(value) in _READ_DIRECTLY:
            check_number(value, name)
            return as_read(value, value.item(), dtype)
        if isinstance(value, LearningRateSchedule):
            return self._scheduled_rate(name, value, dtype, step)
        return as_step_scalar(name, self.now(name), dtype)

    def _scheduled_rate(
        self, name: str, schedule: LearningRateSchedule, dtype: ScalarType, step: torch.Tensor
    ) -> object:
        """Return a schedule's rate at `step` as a scalar. Within a step, the rate is cached."""
        results, key = self._results, (name, dtype)
        if key in self._overrides:
            return self._overrides[key]
        if results is not None and key in results:
            return results[key]
        rate = as_hyper(schedule.value(dtype(step.item())), dtype)
        if results is not None:
            results[key] = rate
        return rate

    def numbers(self) -> dict[str, int | float]:
        """Return {name: number} of plain numbers and of variables made by `create`.

        The user's tensors, callables and schedules are left out.
        """
        numbers: dict[str, int | float] = {}
        for name in self._values:
            value: Any = resolve(self._current_value(name))
            if isinstance(value, Variable) and self.created:
                numbers[name] = value.item()
            elif is_number(value):
                numbers[name] = value.item() if isinstance(value, np.generic) else value
        return numbers

    def shown(self) -> dict[str, str]:
        """Return {name: text} of all values, for messages; callables are named, not called."""
        descriptions: dict[str, str] = {}
        for name, value in self._values.items():
            if is_function(value):
                descriptions[name] = getattr(value, "__name__", type(value).__name__)
            elif is_symbolic(value):
                descriptions[name] = value.name
            elif isinstance(value, torch.Tensor):
                descriptions[name] = str(numpy_value(value))
            else:
                descriptions[name] = str(value)
        return descriptions

    def setting(self, name: str, value: object) -> list[Callable[[], Any]]:
        """Return functions in C that set a hyperparameter to a number when they are called.

        Return [] if the hyperparameter is a callable, a schedule or a tensor of the user.

        Raises:
            InvalidTypeError: The value is not a real number, or is NaN.
            InvalidArgumentError: The value is beyond the range of the hyperparameter.
        """
        if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
            raise InvalidTypeError(f"{name} must be a number.")
        old: Any = self._values[name]
        try:
            with np.errstate(all="ignore"):
                new_value = _in_kind_of(old, value)
        except OverflowError:
            raise InvalidArgumentError(f"{name} is too large.") from None
        if name not in self.numbers():
            return []
        # Rounding a float is allowed; a wrapped integer or a new infinity is an error.
        tensor = to_tensor(new_value, old.dtype if isinstance(old, Variable) else None)
        is_finite_float = tensor.is_floating_point() and np.isfinite(float(value))
        if tensor.item() != value and not (is_finite_float and tensor.isfinite()):
            raise InvalidArgumentError(f"{name} cannot be that number.")
        if isinstance(old, Variable):
            return [partial(old.detach().copy_, tensor)]
        return [partial(operator.setitem, self._values, name, new_value)]

    def __getstate__(self) -> dict[str, Any]:
        # A copy that is made within a step is not in a step.
        return {"_values": dict(self._values), "created": self.created, "calls": self.calls}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()
        vars(self).update(state)

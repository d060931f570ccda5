"""Hyperparameters as TensorFlow keeps them: numbers that become variables, callables, schedules."""

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
    """Whether the value is a plain real number of Python or NumPy."""
    return isinstance(value, int | float | np.integer | np.floating)


def _is_array(value: object) -> TypeGuard[npt.NDArray[Any]]:
    return isinstance(value, np.ndarray)


def _is_numpy_scalar(value: object) -> TypeGuard[np.generic[Any]]:
    return isinstance(value, np.generic)


def is_function(value: object) -> bool:
    """Whether the value is a callable or a schedule, and not a number that can be called."""
    return callable(value) and not isinstance(value, torch.Tensor | torch.nn.Module)


def is_on(value: object) -> bool:
    """Whether a momentum makes a slot: a number above 0, or any tensor or callable."""
    if _is_array(value):
        value = value[()]
    return bool(value > 0) if is_number(value) else True


def as_number(name: str, value: object) -> Any:
    """A plain number, also from a 0-d tensor or array; a NumPy scalar of one of float64.

    Raises:
        InvalidTypeError: It is no real number; names the argument.
        InvalidArgumentError: It is NaN.
        LayoutError: It is a tensor whose storage was cut.
    """
    if (isinstance(value, torch.Tensor) or _is_array(value)) and value.ndim == 0:
        if isinstance(value, torch.Tensor):
            check_number(value, name)
        is_double = scalar_type(value) is np.float64  # a Python float would become float32
        value = np.float64(value.item()) if is_double else value.item()
    if not is_number(value):
        raise InvalidTypeError(f"{name} must be a number, not {show_value(value)}.{hint(value)}")
    if value != value:
        raise InvalidArgumentError(f"{name} is nan.")
    check_size(name, value)
    return value


def check_size(name: str, value: object) -> None:
    """Refuse a whole number that no float can hold.

    Raises:
        InvalidArgumentError: Names it.
    """
    if isinstance(value, int):
        try:
            float(value)
        except OverflowError:
            raise InvalidArgumentError(f"{name} is too large: {show_value(value)}.") from None


def as_hyper(value: Any, dtype: ScalarType) -> Any:
    """A hyperparameter's value as a scalar of `dtype`, converted as TensorFlow does.

    Its kernels take a number below the normal ones of its own type, or of `dtype`, for 0: a Python
    float is float32 on its way to float64.
    """
    made = as_scalar(value, dtype)
    if type(value) is float and value >= _TINY:  # most are
        return made
    if -_TINY < made < _TINY and made:
        return _flush_denormal(made, scalar_type(value), dtype)
    return made


def as_read(tensor: torch.Tensor, number: Any, dtype: ScalarType) -> Any:
    """Return the number that was read from a tensor as a scalar of `dtype`; see `as_hyper`."""
    if -_TINY < number < _TINY and number:
        return _flush_denormal(number, scalar_type(tensor), dtype)
    return dtype(number)


def _flush_denormal(number: Any, source: ScalarType, dtype: ScalarType) -> object:
    """A small number of the type `source`, or 0 where denormals are flushed and it is one."""
    limit = _TINY if np.float32 in (source, dtype) else float(np.finfo(np.float64).tiny)
    flushes = current().denormals == "flush" and abs(number) < limit
    return dtype(math.copysign(0.0, number) if flushes else number)


def as_step_scalar(name: str, value: object, dtype: ScalarType) -> Any:
    """As `as_hyper`.

    Raises:
        InvalidTypeError: It is no number; names it.
        InvalidArgumentError: It is a whole number that no float can hold.
        LayoutError: It is a tensor whose storage was cut.
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
    """Refuse a number outside [0, 1].

    Raises:
        ValueError: It is outside; names it.
    """
    if is_number(value) and not 0 <= value <= 1:
        raise ValueError(
            f"`{name}` must be between [0, 1]. Received: {name}={value} (of type {type(value)})."
        )


def check_value(name: str, value: object) -> Any:
    """The value, if a hyperparameter can be it; a number of an array of shape ().

    Raises:
        InvalidTypeError, InvalidArgumentError: It cannot; names the hyperparameter.
    """
    if is_function(value) or is_symbolic(value):
        return value
    accepted = "number, a tensor of shape (), a schedule or a callable without arguments"
    if isinstance(value, np.bool_):
        return value == np.True_
    check_scalar(name, value, accepted)
    return value[()] if _is_array(value) else value


def check_scalar(name: str, value: object, accepted: str) -> None:
    """Refuse what is neither a real number nor a tensor of one, of this or another mode.

    Args:
        name: The hyperparameter.
        value: What was given.
        accepted: What it must be, for the message, after "must be a".

    Raises:
        InvalidTypeError: It is no number, is complex, or has no value.
        InvalidArgumentError: It has a shape, is NaN, or a whole number that no float can hold.
        LayoutError: It is a tensor whose storage was cut.
    """
    # An unknown shape of a graph's tensor is false, as that of a scalar.
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
    number: Any = value[()] if _is_array(value) else value
    if not is_number(number):
        raise InvalidTypeError(
            f"{name} must be a {accepted}, not {show_value(value)}.{hint(value)}"
        )
    if number != number:
        raise InvalidArgumentError(f"{name} is nan.")
    check_size(name, number)


def _check_variable(name: str, value: int) -> None:
    """Refuse a whole number that the int32 variable it becomes cannot hold."""
    if not -(2**31) <= value < 2**31:
        raise InvalidArgumentError(
            f"{name} is a whole number, which becomes int32, and does not fit: {show_value(value)}."
            " Give a float."
        )


def hint(value: object) -> str:
    """A way out for those who come from `torch.optim`, or from a graph."""
    if is_symbolic(value):
        return " It belongs to a graph: fetch its value with Session.run."
    is_list = isinstance(value, list | tuple) and any(
        isinstance(each, torch.Tensor | dict) for each in cast("Sequence[Any]", value)
    )
    if is_list or isinstance(value, Iterator | torch.nn.Module | dict):
        return (
            " Variables go to minimize() or apply_gradients(), not to the constructor;"
            " thalweg.optim has optimizers that take them there."
        )
    return ""


def _in_kind_of(old: object, value: int | float) -> object:
    """A number as a hyperparameter that is `old` would keep it, exactly or rounded or truncated.

    Raises:
        OverflowError: It is too large.
    """
    if _is_numpy_scalar(old):
        return old.dtype.type(value)
    is_whole = isinstance(old, torch.Tensor) and not old.is_floating_point()
    if is_whole or (isinstance(value, int) and is_number(old) and not isinstance(old, float)):
        return int(value)
    return float(value)


_PLAIN = (Variable, SessionVariable)  # whose `item` is torch's


class Hyperparameters(Mapping[str, Any]):
    """The hyperparameters of one optimizer, by name.

    A plain number is kept as given until the first use; then `create` makes it a scalar variable:
    float32 for a Python float, int32 for an int, float64 for a numpy.float64. Tensors, variables,
    callables and schedules stay what they are. As in a dict, values are found by name. In graph
    mode the variable is one of the graph, of which each session has a value.

    Attributes:
        created: Whether numbers have become variables.
        calls: Whether there is a callable or a schedule among them.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._given: dict[Any, Any] | None = None  # by callables in the step under way, if one is
        self._known: dict[object, object] = {}  # what a run of a graph's step knows of them
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

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def raw(self, name: str) -> Any:
        """The value as it is kept now."""
        return self._values[name]

    def __enter__(self) -> None:
        """Begin a step, in which each callable and schedule is called once."""
        self._given = {}

    @property
    def is_begun(self) -> bool:
        """True from the beginning of a step to its end."""
        return self._given is not None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._given = None

    def set(self, name: str, value: Any, assign: Callable[[Any, Any], None]) -> None:
        """Set or change a hyperparameter.

        Args:
            name: The hyperparameter.
            value: A number, tensor, callable or schedule.
            assign: Gives a variable, of eager mode or of a graph, a number.

        Raises:
            TypeError: A callable is set over a variable.
            InvalidTypeError: The value is none that a hyperparameter can have, a fraction is set
                over an integer variable, or a tensor of a graph over a variable.
            InvalidArgumentError: The value is not a scalar, or NaN.
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
            number = value.item() if is_tensor or _is_numpy_scalar(value) else value
            dtype: torch.dtype = getattr(old, "dtype", None) or torch.float32
            is_whole = not dtype.is_floating_point
            if is_whole and not float(number).is_integer():
                raise InvalidTypeError(
                    f"{name} was given as a whole number and is an {dtype_name(dtype)} variable"
                    f" by now, which cannot become {number!r}. Give a float to the constructor."
                )
            assign(old, int(number) if is_whole else number)
        self.calls = any(map(is_function, self._values.values()))

    def all_of(self, called: dict[str, object]) -> dict[str, Any]:
        """The values as they are kept now, but for callables what those have given."""
        return {**self._values, **called}

    def called(self) -> dict[str, Any]:
        """What the callables among them give now, checked; schedules are not asked."""
        found: dict[str, Any] = {}
        for name, value in self._values.items():
            if is_function(value) and not isinstance(value, LearningRateSchedule):
                found[name] = value()
                if not is_symbolic(found[name]):
                    as_step_scalar(name, found[name], np.float64)
        return found

    def knowing(self, known: dict[object, object]) -> ContextSetting:
        """Let steps in the `with` block take what a run of a graph has found, and call nothing.

        Args:
            known: Values by name, and those of schedules by (name, dtype).
        """
        return self._with_value("_known", known)

    def uncalled(self) -> ContextSetting:
        """Let NaN stand for what callables would give in the `with` block, and call nothing."""
        return self._with_value("_given", dict.fromkeys(self._values, math.nan))

    def _with_value(self, name: str, value: object) -> ContextSetting:
        change = partial(setattr, self, name)
        return ContextSetting(
            lambda: ([partial(change, value)], [partial(change, getattr(self, name))])
        )

    def create(self, make: Callable[[str, Any], object]) -> dict[str, Any]:
        """Let variables that `make(name, number)` returns take the place of plain numbers.

        They are made in alphabetical order.

        Returns:
            Those that were made, by name.
        """
        made: dict[str, Any] = {}
        if not self.created:
            for name in sorted(self._values):
                if is_number(self._values[name]):
                    made[name] = make(name, self._values[name])
            self._values.update(made)
            self.created = True
        return made

    def variables(self) -> dict[str, Any]:
        """The values that are variables, of the optimizer's own or given as such."""
        own = (Variable, torch.nn.Parameter, SymbolicVariable)
        return {name: each for name, each in self._values.items() if isinstance(each, own)}

    def now(self, name: str) -> Any:
        """The value; of a callable what it returns. A schedule is given as it is."""
        value = resolve(self._current_value(name))
        if not is_function(value) or isinstance(value, LearningRateSchedule):
            return value
        given = self._given
        if given is None:
            return value()
        if name not in given:
            given[name] = value()
        return given[name]

    def _current_value(self, name: str) -> object:
        value = self._known.get(name)
        return self._values[name] if value is None else value

    def scalar(self, name: str, dtype: ScalarType, step: torch.Tensor) -> Any:
        """The value now as a scalar of `dtype`, converted as TensorFlow does.

        Args:
            name: A hyperparameter.
            dtype: numpy.float32 or numpy.float64.
            step: What a schedule is asked for, an integer of shape ().

        Raises:
            InvalidTypeError: A callable or a schedule returned no number; names them.
            InvalidArgumentError: It returned a whole number that no float can hold.
        """
        value: Any = self._current_value(name)
        if type(value) is float:
            return as_hyper(value, dtype)
        if type(value) in _PLAIN:
            check_number(value, name)
            return as_read(value, value.item(), dtype)
        if isinstance(value, LearningRateSchedule):
            return self._scheduled_rate(name, value, dtype, step)
        return as_step_scalar(name, self.now(name), dtype)

    def _scheduled_rate(
        self, name: str, schedule: LearningRateSchedule, dtype: ScalarType, step: torch.Tensor
    ) -> object:
        given, key = self._given, (name, dtype)
        if key in self._known:
            return self._known[key]
        if given is not None and key in given:
            return given[key]
        value = as_hyper(schedule.value(dtype(step.item())), dtype)
        if given is not None:
            given[key] = value
        return value

    def numbers(self) -> dict[str, int | float]:
        """The values of hyperparameters that are plain numbers or variables made of them."""
        found: dict[str, int | float] = {}
        for name in self._values:
            value: Any = resolve(self._current_value(name))
            if isinstance(value, Variable) and self.created:
                found[name] = value.item()
            elif is_number(value):
                found[name] = value.item() if isinstance(value, np.generic) else value
        return found

    def shown(self) -> dict[str, str]:
        """What each is, in a few characters; callables and schedules are not called."""
        found: dict[str, str] = {}
        for name, value in self._values.items():
            if is_function(value):
                found[name] = getattr(value, "__name__", type(value).__name__)
            elif is_symbolic(value):
                found[name] = value.name
            elif isinstance(value, torch.Tensor):
                found[name] = str(numpy_value(value))
            else:
                found[name] = str(value)
        return found

    def setting(self, name: str, value: object) -> list[Callable[[], Any]]:
        """Calls, in C alone, that set a number; schedules, callables and tensors stay in force.

        Raises:
            InvalidTypeError, InvalidArgumentError: It is no real number, NaN, or one that the
                hyperparameter cannot hold.
        """
        if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
            raise InvalidTypeError(f"{name} must be a number.")
        old: Any = self._values[name]
        try:
            with np.errstate(all="ignore"):
                number = _in_kind_of(old, value)
        except OverflowError:
            raise InvalidArgumentError(f"{name} is too large.") from None
        if name not in self.numbers():
            return []
        tensor = to_tensor(number, old.dtype if isinstance(old, Variable) else None)
        is_rounded = tensor.is_floating_point() and np.isfinite(float(value))
        if tensor.item() != value and not (is_rounded and tensor.isfinite()):
            raise InvalidArgumentError(f"{name} cannot be that number.")
        if isinstance(old, Variable):
            return [partial(old.detach().copy_, tensor)]
        return [partial(operator.setitem, self._values, name, number)]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_given": None, "_known": {}}  # a copy made in a step is in none

    def __copy__(self) -> Hyperparameters:
        copied = Hyperparameters()
        copied._values.update(self._values)
        copied.created = self.created
        copied.calls = self.calls
        return copied

"""`CallableRate`: a learning rate of eager mode, computed anew by each call.

The *formula* of a rate computes the rate from a step count alone, in NumPy. With a formula, the
rates of coming steps can be computed in advance.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec

import numpy as np
import torch
from torch import Tensor

from thalweg._base.device_counters import number_of
from thalweg._base.execution_context import executing_eagerly
from thalweg._core.config_registry import RATES, Argument, Names
from thalweg._core.hyperparameters import is_function
from thalweg.errors import InvalidTypeError
from thalweg.schedules.ahead import RatesAhead

P = ParamSpec("P")


def _binary_operators(function: Callable[[Any, Any], object]) -> tuple[Any, Any]:
    """Return two methods of `CallableRate` for a binary operator: `__op__` and `__rop__`."""

    def forward(self: CallableRate, operand: object) -> CallableRate:
        return _combine_rates(function, self.__name__, self, operand)

    def reflected(self: CallableRate, operand: object) -> CallableRate:
        return _combine_rates(function, self.__name__, operand, self)

    return forward, reflected


class CallableRate(Argument):
    """Callable without arguments that returns the learning rate, for eager mode.

    The `*_decay` functions return a `CallableRate` in eager mode, and a tensor in graph mode.
    Arithmetic and torch's functions of rates return a new `CallableRate`.

    Args:
        rate: `rate()` returns the present learning rate.
        name: Name in messages.
        state_holders: Objects with `state_dict` and `load_state_dict` that the rate depends on.

    Attributes:
        source: (function, {name: argument}) that created the rate, for a file that describes it.
            None after arithmetic.
    """

    # Makes NumPy's operators defer to the reflected operators of this class.
    __array_ufunc__ = None

    def __init__(
        self, rate: Callable[[], object], name: str, state_holders: Sequence[object] = ()
    ) -> None:
        self._rate = rate
        # The count of steps, if the rate depends on nothing else.
        self._step: Any = None
        self._ahead: RatesAhead | None = None
        self.state_holders = state_holders
        self.__name__ = name
        self.source: tuple[Callable[..., object], dict[str, object]] | None = None

    def __call__(self) -> Any:
        """Return the present learning rate."""
        present_rate = self.computed()
        return self._rate() if present_rate is None else _as_tensor(present_rate)

    def follow(self, step: object, rate_at: Callable[[int], Any]) -> None:
        """Set the formula `rate_at`: calls of the rate then return `rate_at(value of step)`.

        Do nothing if `step` is neither an integer nor an integer tensor.

        Args:
            step: The counter of steps.
            rate_at: `rate_at(count)` returns the rate as a NumPy scalar. The rate may depend on
                `count` and `state_holders` only.
        """
        is_count = isinstance(step, Tensor) and not (step.is_floating_point() or step.is_complex())
        if is_count or type(step) is int:
            self._step, self._ahead = step, RatesAhead(rate_at)

    def unfollow(self) -> None:
        """Remove the formula: the rate depends on more than a counter of steps."""
        self._ahead = None

    def computed(self) -> Any:
        """Return the formula's value at the present step, as a NumPy scalar.

        Return None without a formula, and while a graph is built.
        """
        if self._ahead is None or not executing_eagerly():
            return None
        count = number_of(self._step) if isinstance(self._step, Tensor) else self._step
        # A formula that draws random numbers must not be evaluated for steps that may not come.
        return self._ahead.alone(count) if self.state_holders else self._ahead.at(count)

    def is_over(self, step: object) -> bool:
        """Return True if the formula's step counter is the object `step`."""
        return step is not None and self._step is step

    def at(self, count: int) -> Any:
        """Return the rate at a count of steps as a NumPy scalar; None without a formula."""
        return None if self._ahead is None else self._ahead.at(count)

    def _made_by(self) -> tuple[Names, object] | None:
        return None if self.source is None else (RATES, self.source[0])

    def _arguments(self) -> dict[str, object]:
        return {} if self.source is None else self.source[1]

    def _keeps(self) -> Sequence[object]:
        return self.state_holders

    __add__, __radd__ = _binary_operators(operator.add)
    __sub__, __rsub__ = _binary_operators(operator.sub)
    __mul__, __rmul__ = _binary_operators(operator.mul)
    __truediv__, __rtruediv__ = _binary_operators(operator.truediv)
    __pow__, __rpow__ = _binary_operators(operator.pow)

    def __neg__(self) -> CallableRate:
        return CallableRate(lambda: -self(), self.__name__, self.state_holders)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> CallableRate:
        """Return a `CallableRate`: a call evaluates rates in the arguments, calls `function`."""
        keyword_args = kwargs or {}

        def rate() -> object:
            kwargs_now = {name: _evaluate(kwarg) for name, kwarg in keyword_args.items()}
            return function(*map(_evaluate, args), **kwargs_now)

        state = _list_holders(*args, *keyword_args.values())
        return CallableRate(rate, getattr(function, "__name__", "rate"), state)

    def _refuse_number(self, *_: object) -> NoReturn:
        raise InvalidTypeError(
            f"{self.__name__} is no number in eager mode: it gives one whenever it is called, as"
            " `rate()`. Hand it to an optimizer as it is, or make another of it by arithmetic or by"
            " torch's functions."
        )

    __float__ = __int__ = __index__ = __bool__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_number
    __getitem__ = __iter__ = __len__ = __abs__ = __round__ = _refuse_number

    def __deepcopy__(self, memo: object) -> CallableRate:
        # Like a function, a rate is its own copy: it follows the same counter.
        return self

    def __repr__(self) -> str:
        return f"<learning rate '{self.__name__}', computed when it is called>"


_signatures: dict[Callable[..., object], inspect.Signature] = {}


def remember_source(function: Callable[P, object]) -> Callable[P, Any]:
    """Decorate a function that returns rates: set the attribute `source` of each returned rate.

    `source` is (decorated function, {name: argument}). If an argument besides the step counter can
    change, the rate loses its formula (see `CallableRate.follow`).
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def make_rate(*args: P.args, **kwargs: P.kwargs) -> object:
        rate = function(*args, **kwargs)
        if isinstance(rate, CallableRate) and rate.source is None:
            arguments = dict(signature.bind(*args, **kwargs).arguments)
            rate.source = (make_rate, arguments)
            if not all(map(_is_constant, _flatten_constants(arguments))):
                rate.unfollow()
        return rate

    _signatures[make_rate] = signature
    return make_rate


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature of a function; a decoration by `remember_source` is ignored.

    Raises:
        TypeError: The argument is not callable.
        ValueError: The function has no signature.
    """
    # No attribute: `functools.wraps` would copy it to a function that takes something else.
    signature = _signatures.get(function) if inspect.isfunction(function) else None
    return signature or inspect.signature(function, follow_wrapped=False)


def _list_holders(*operands: object) -> list[object]:
    """Return the state holders of all `CallableRate`s among `operands`, without duplicates."""
    holders = [
        holder
        for operand in operands
        if isinstance(operand, CallableRate)
        for holder in operand.state_holders
    ]
    return list({id(holder): holder for holder in holders}.values())


def has_formula(hyper: object) -> bool:
    """Return True if a hyperparameter is a `CallableRate` with a formula."""
    return isinstance(hyper, CallableRate) and hyper._ahead is not None


def follows_count(hyper: Any) -> bool:
    """Return True if a hyperparameter is a `CallableRate` that depends on a counter alone."""
    return has_formula(hyper) and not hyper.state_holders


def value_now(hyper: Any) -> Any:
    """Return the present value of a hyperparameter.

    Returns:
        A NumPy scalar for a `CallableRate` with a formula; the result of another callable; any
        other object unchanged.
    """
    present_rate = hyper.computed() if isinstance(hyper, CallableRate) else None
    return _evaluate(hyper) if present_rate is None else present_rate


def _flatten_constants(arguments: Mapping[str, Any]) -> list[object]:
    """Return the arguments of a rate except the counter of steps; lists are flattened."""
    entries: list[object] = []
    for name, argument in arguments.items():
        if name not in ("global_step", "x"):
            entries += argument if isinstance(argument, list | tuple) else (argument,)
    return entries


def _is_constant(argument: object) -> bool:
    return isinstance(argument, _CONSTANTS)


_CONSTANTS = (int, float, str, np.generic, torch.dtype, type(None))


def _combine_rates(
    function: Callable[[Any, Any], object], name: str, *operands: Any
) -> CallableRate:
    """Return a `CallableRate` whose calls return `function` of the operands' present values.

    An operand is a rate, a number or a tensor. If all rates have formulas of the same step counter,
    and no operand is a tensor, the new rate has a formula, too (see `CallableRate.follow`).
    """
    rate = CallableRate(lambda: function(*map(_evaluate, operands)), name, _list_holders(*operands))
    rates = [operand for operand in operands if isinstance(operand, CallableRate)]
    step = rates[0]._step

    def rate_at(count: int) -> Any:
        values = [
            _as_tensor(operand.at(count)) if isinstance(operand, CallableRate) else operand
            for operand in operands
        ]
        rate_value = function(*values)
        # `[()]` makes a NumPy scalar of an array of shape ().
        return rate_value.numpy()[()] if isinstance(rate_value, Tensor) else rate_value

    constants = [operand for operand in operands if not isinstance(operand, CallableRate)]
    if all(follows_count(operand) and operand._step is step for operand in rates) and all(
        map(_is_constant, constants)
    ):
        rate.follow(step, rate_at)
    return rate


def _as_tensor(value: Any) -> Tensor:
    """Return a number as a CPU tensor of its NumPy type; Python's floats are float32, as in TF."""
    scalar = np.float32(value) if type(value) is float else value
    return torch.from_numpy(np.array(scalar))


def _evaluate(operand: Any) -> object:
    return operand() if is_function(operand) else operand

"""`Followed`: a learning rate of eager mode, computed anew whenever it is called."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec

from thalweg.core.described import RATES, Argument, Names
from thalweg.core.hyperparameters import is_function
from thalweg.errors import InvalidTypeError

P = ParamSpec("P")


def _binary_operators(function: Callable[[Any, Any], object]) -> tuple[Any, Any]:
    """An operator and its reflection."""

    def forward(self: Followed, other: object) -> Followed:
        return Followed(
            lambda: function(self(), _current_value(other)), self.__name__, _kept_by(self, other)
        )

    def reflected(self: Followed, other: object) -> Followed:
        return Followed(
            lambda: function(_current_value(other), self()), self.__name__, _kept_by(self, other)
        )

    return forward, reflected


class Followed(Argument):
    """What a `*_decay` function or a policy returns in eager mode: a callable without arguments.

    Arithmetic and torch's functions make another one of it, which follows the same step, as they
    make another tensor of the tensor that a graph has in its place.

    Args:
        rate: Gives the learning rate now.
        name: Its name in messages.
        keeps: What remembers something and has `state_dict` and `load_state_dict`.

    Attributes:
        source: The function that made it and its arguments by name, by which a file describes it;
            None where there is none, as after arithmetic.
    """

    __array_ufunc__ = None  # NumPy's operators leave the work to the reflected ones here

    def __init__(self, rate: Callable[[], object], name: str, keeps: Sequence[object] = ()) -> None:
        self._rate = rate
        self.keeps = keeps
        self.__name__ = name
        self.source: tuple[Callable[..., object], dict[str, object]] | None = None

    def __call__(self) -> Any:
        """The learning rate now."""
        return self._rate()

    def _made_by(self) -> tuple[Names, object] | None:
        return None if self.source is None else (RATES, self.source[0])

    def _arguments(self) -> dict[str, object]:
        return {} if self.source is None else self.source[1]

    def _keeps(self) -> Sequence[object]:
        return self.keeps

    __add__, __radd__ = _binary_operators(operator.add)
    __sub__, __rsub__ = _binary_operators(operator.sub)
    __mul__, __rmul__ = _binary_operators(operator.mul)
    __truediv__, __rtruediv__ = _binary_operators(operator.truediv)
    __pow__, __rpow__ = _binary_operators(operator.pow)

    def __neg__(self) -> Followed:
        return Followed(lambda: -self(), self.__name__, self.keeps)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Followed:
        given = kwargs or {}

        def rate() -> object:
            own = {name: _current_value(value) for name, value in given.items()}
            return function(*map(_current_value, args), **own)

        keeps = _kept_by(*args, *given.values())
        return Followed(rate, getattr(function, "__name__", "rate"), keeps)

    def _refuse_number(self, *_: object) -> NoReturn:
        raise InvalidTypeError(
            f"{self.__name__} is no number in eager mode: it gives one whenever it is called, as"
            " `rate()`. Hand it to an optimizer as it is, or make another of it by arithmetic or by"
            " torch's functions."
        )

    __float__ = __int__ = __index__ = __bool__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_number
    __getitem__ = __iter__ = __len__ = __abs__ = __round__ = _refuse_number

    def __deepcopy__(self, memo: object) -> Followed:
        return self  # as a function is its own copy: it follows the same step

    def __repr__(self) -> str:
        return f"<learning rate '{self.__name__}', computed when it is called>"


_signatures: dict[Callable[..., object], inspect.Signature] = {}


def remember_source(function: Callable[P, object]) -> Callable[P, Any]:
    """A function that returns a learning rate, so that a `Followed` tells where it is from."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def make_rate(*args: P.args, **kwargs: P.kwargs) -> object:
        rate = function(*args, **kwargs)
        if isinstance(rate, Followed) and rate.source is None:
            rate.source = (make_rate, dict(signature.bind(*args, **kwargs).arguments))
        return rate

    _signatures[make_rate] = signature
    return make_rate


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """What a function takes; of one that a decorator made, what the decorator's takes.

    Raises:
        TypeError: It is not callable.
        ValueError: It does not tell.
    """
    # No attribute: `functools.wraps` would copy it to a function that takes something else.
    known = _signatures.get(function) if inspect.isfunction(function) else None
    return known or inspect.signature(function, follow_wrapped=False)


def _kept_by(*parts: object) -> list[object]:
    """What parts of a learning rate keep, each once."""
    found = [kept for part in parts if isinstance(part, Followed) for kept in part.keeps]
    return list({id(kept): kept for kept in found}.values())


def _current_value(value: Any) -> object:
    return value() if is_function(value) else value

"""Context managers that restore their setting after any interruption.

`KeyboardInterrupt`, and exceptions of `PyThreadState_SetAsyncExc`, are raised between two bytecode
instructions: also at the first one of `__exit__` or of a `finally` block. A setting, such as
torch's recording of gradients, would then stay changed.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from io import IOBase
from itertools import compress
from typing import Any, ParamSpec, TypeVar, cast

import torch

_P = ParamSpec("_P")
_T = TypeVar("_T")

Call = Callable[[], Any]
Sections = tuple[Sequence[Call], Sequence[Call]]

# Calls the remaining functions of an iterator of `calls`; itself a callable in C.
drain: Callable[[Iterator[Any]], Any] = partial(cast("type[deque[Any]]", deque), maxlen=0)

_C: Any = torch._C  # pyright: ignore[reportPrivateUsage]


def calls(functions: Iterable[Call]) -> Iterator[Any]:
    """Return an iterator that calls the next function at each step and yields its result."""
    return map(operator.call, functions)


def when(condition: Iterable[object], call: Call) -> Call:
    """Return a function in C that calls `call` if the iterator `condition` yields a true value."""
    return partial(drain, calls(compress([call], condition)))


class _Entering:
    """Descriptor that returns a C function as `__enter__`.

    A Python method could be interrupted after the setting has changed and before the block begins.
    """

    def __get__(self, block: ContextSetting | None, owner: object = None) -> object:
        return _entered if block is None else block.opening()


def _entered(block: ContextSetting) -> object:
    """Enter a block, for `contextlib.ExitStack`, which looks up `__enter__` on the class."""
    return block.opening()()


class ContextSetting(IOBase):
    """Context manager and decorator that opens and closes uninterruptibly, in C.

    `__exit__` of `IOBase` calls `close` from C. A Python method could be interrupted before it
    restores the setting.

    Args:
        prepare: Called at the start of a block. Returns the opening and closing calls: functions in
            C that cannot fail, except that the last closing call may be any function.
        value: Optional. The value that `as` binds.
    """

    def __init__(self, prepare: Callable[[], Sections], value: Any = None) -> None:
        self._prepare = prepare
        self._value = value

    def opening(self) -> Call:
        """Call `prepare`; return a C function: it sets `close`, opens a block, returns `value`."""
        opening, closing = self._prepare()
        closes = partial(setattr, self, "close", _make_section(closing))
        opens = _make_section([closes, *opening])
        if self._value is None:
            return opens
        get_value = partial(operator.itemgetter(0), (self._value,))
        is_value = partial(operator.is_, self._value)
        # `next` calls `opens`, skips the None that it returns, and returns the value: all in C.
        return partial(next, filter(is_value, map(operator.call, (opens, get_value))))

    __enter__: Any = _Entering()

    def __call__(self, function: Callable[_P, _T]) -> Callable[_P, _T]:
        """Return a function that executes each call in a separate block."""

        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with ContextSetting(self._prepare, self._value):
                return function(*args, **kwargs)

        return call


def _make_section(functions: Sequence[Call]) -> Call:
    """Return a C function that calls all functions."""
    # The second call does nothing, because the `map` is exhausted. `IOBase.__del__` makes such a
    # call of `close`, which would otherwise restore an old setting much later.
    return partial(deque[Any](maxlen=0).extend, map(operator.call, functions))


def no_grad() -> ContextSetting:
    """Disable the recording of gradients as `torch.no_grad()` does."""
    return ContextSetting(partial(_recording, False))


def enable_grad() -> ContextSetting:
    """Enable the recording of gradients as `torch.enable_grad()` does."""
    return ContextSetting(partial(_recording, True))


def grad_kept() -> ContextSetting:
    """Return a context manager that restores the recording of gradients at its end."""
    return ContextSetting(lambda: ([], _recording(True)[1]))


def outside_inference() -> ContextSetting:
    """Leave inference mode as `torch.inference_mode(False)` does, which enables gradients."""
    return ContextSetting(_outside_inference)


def writable() -> ContextSetting:
    """Disable gradients and leave inference mode, so that new tensors can be written later."""
    return ContextSetting(_writable)


def host_allocations() -> AbstractContextManager[Any]:
    """Return a context manager in which torch's default device is the CPU."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def _recording(enabled: bool) -> Sections:
    change = _C._set_grad_enabled
    return [partial(change, enabled)], [partial(change, torch.is_grad_enabled())]


def _outside_inference() -> Sections:
    # The end of the guard, which only this list holds, restores torch's state.
    guards: list[Any] = []
    return [partial(guards.extend, map(_C._InferenceMode, (False,)))], [guards.clear]


def _writable() -> Sections:
    opening, closing = _outside_inference()
    return [*opening, partial(_C._set_grad_enabled, False)], closing

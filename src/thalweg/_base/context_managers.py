"""Switches for a `with` block that are switched back under any interruption.

`KeyboardInterrupt`, and what `PyThreadState_SetAsyncExc` sends, reach Python code between two of
its instructions: also the first one of an `__exit__`, or of what follows `finally`. A switch would
stay then as the block had it, such as torch's recording of gradients: off.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from io import IOBase
from typing import Any, ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_T = TypeVar("_T")

Call = Callable[[], Any]
Sections = tuple[Sequence[Call], Sequence[Call]]

_C: Any = torch._C


class _Entering:
    """Finds `__enter__` of a `ContextSetting`: its section, where Python code has come to its end.

    `with` finds it, and then calls it. A method of Python's would have instructions after the
    section, where an interruption leaves the block open, but not entered.
    """

    def __get__(self, block: ContextSetting | None, owner: object = None) -> object:
        return _entered if block is None else block.opening()


def _entered(block: ContextSetting) -> object:  # as `contextlib.ExitStack` calls it
    return block.opening()()


class ContextSetting(IOBase):
    """A `with` block that one section opens and another closes, whatever interrupts it.

    `IOBase` has its block end with a call of `close`, from C. A method of Python's would have
    instructions before its section, where an interruption leaves the block, but not closed.

    Args:
        prepare: Called where a block begins. Returns what opens and what closes it, as functions
            in C that cannot fail; the last one that closes may be any function.
        given: What `as` gives, if anything.
    """

    def __init__(self, prepare: Callable[[], Sections], given: Any = None) -> None:
        self._prepare = prepare
        self._given = given

    def opening(self) -> Call:
        """Return the section that opens the block, made anew for each."""
        first, last = self._prepare()
        closes = partial(setattr, self, "close", _section(last))
        opens = _section([closes, *first])
        if self._given is None:
            return opens
        gives = partial(operator.itemgetter(0), (self._given,))
        is_given = partial(operator.is_, self._given)
        return partial(next, filter(is_given, map(operator.call, (opens, gives))))

    __enter__: Any = _Entering()

    def __call__(self, function: Callable[_P, _T]) -> Callable[_P, _T]:
        """As a decorator: each call of the function is a block of its own."""

        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with ContextSetting(self._prepare, self._given):
                return function(*args, **kwargs)

        return call


def _section(functions: Sequence[Call]) -> Call:
    return partial(deque[Any](maxlen=0).extend, map(operator.call, functions))


def no_grad() -> ContextSetting:
    """Disable the recording of gradients as `torch.no_grad()` does."""
    return ContextSetting(partial(_recording, False))


def enable_grad() -> ContextSetting:
    """Enable the recording of gradients as `torch.enable_grad()` does."""
    return ContextSetting(partial(_recording, True))


def grad_kept() -> ContextSetting:
    """Return a context manager for a block that may switch the recording of gradients, which is put
    back.
    """
    return ContextSetting(lambda: ([], _recording(True)[1]))


def outside_inference() -> ContextSetting:
    """Leave inference mode as `torch.inference_mode(False)` does, which records gradients."""
    return ContextSetting(_outside_inference)


def writable() -> ContextSetting:
    """Disable gradients and leave inference mode: tensors made inside may be written to later."""
    return ContextSetting(_writable)


def host_allocations() -> AbstractContextManager[Any]:
    """Return a block in which torch's code makes tensors on the CPU where it names no device.

    Torch makes counters of steps so, which would otherwise be on torch's default device.
    """
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def _recording(is_on: bool) -> Sections:
    change = _C._set_grad_enabled
    return [partial(change, is_on)], [partial(change, torch.is_grad_enabled())]


def _outside_inference() -> Sections:
    # Nobody else has the guard, whose end puts back all that torch records.
    guards: list[Any] = []
    return [partial(guards.extend, map(_C._InferenceMode, (False,)))], [guards.clear]


def _writable() -> Sections:
    into, back = _outside_inference()
    return [*into, partial(_C._set_grad_enabled, False)], back

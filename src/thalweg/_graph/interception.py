"""Calls of torch modules on symbolic tensors become one operation while a graph is being built.

`torch.nn.Module.__call__` is replaced while a graph is being built. Without the replacement, the
module's `forward` would run now. `forward` would make decisions that belong to a run (training or
evaluation, branches on data), write to the module's buffers, and leave parameters without names.
torch has no other place to intercept the call. `__torch_function__` and its modes see functions
only, and global hooks of modules cannot skip `forward`. (torch.fx replaces `__call__`, too.)

The replacement acts in a thread that is building a graph, on calls that receive a symbolic tensor.
All other calls go to the previous function.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from thalweg._base.execution_context import executing_eagerly
from thalweg._base.locks import Lock
from thalweg._core.nest import leaves_of
from thalweg._graph.modules import call_module
from thalweg._graph.nodes import SymbolicTensor


class _Interception:
    """State of the replacement of `Module.__call__`, and count of graphs under construction."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.builders = 0
        self.original: Any = None
        self.replacement: Any = None


_state = _Interception()


def start_intercepting() -> None:
    """Replace `Module.__call__`, until `stop_intercepting` was called equally often."""
    with _state.lock:
        _state.builders += 1
        if _state.builders == 1:
            _state.original = torch.nn.Module.__call__
            _state.replacement = _intercepting_call(_state.original)
            torch.nn.Module.__call__ = _state.replacement


def stop_intercepting() -> None:
    """Undo one `start_intercepting`."""
    with _state.lock:
        _state.builders -= 1
        # Another tracer may have put its own wrapper on top. When that is taken off, ours comes
        # back and stays: it passes on all calls until a graph is built again.
        if _state.builders == 0 and torch.nn.Module.__call__ is _state.replacement:
            torch.nn.Module.__call__ = _state.original


@contextlib.contextmanager
def intercept_modules() -> Iterator[None]:
    """Return a context manager that intercepts calls of modules."""
    start_intercepting()
    try:
        yield
    finally:
        stop_intercepting()


def _intercepting_call(original: Callable[..., object]) -> Callable[..., object]:
    """Return a `Module.__call__` that records calls with symbolic tensors as operations.

    Other calls go to `original(module, *args, **kwargs)`.
    """

    def call(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
        if not executing_eagerly():
            symbols = (x for x in leaves_of((args, kwargs)) if isinstance(x, SymbolicTensor))
            symbol = next(symbols, None)
            if symbol is not None:
                return call_module(symbol.graph, module, args, kwargs)
        return original(module, *args, **kwargs)

    return call

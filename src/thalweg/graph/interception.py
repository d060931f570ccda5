"""Calls of torch modules on symbolic tensors, caught while some graph is being built."""

from __future__ import annotations

import threading
from typing import Any

import torch

from thalweg.graph.nest import leaves_of
from thalweg.graph.running import executing_eagerly
from thalweg.graph.tensor import SymbolicTensor

_lock = threading.Lock()
_builders = 0
_original: Any = None


def start() -> None:
    """Catch calls of modules until as many calls of `stop`."""
    global _builders, _original
    with _lock:
        _builders += 1
        if _builders == 1:
            _original = torch.nn.Module.__call__
            torch.nn.Module.__call__ = _call


def stop() -> None:
    """Undo one `start`."""
    global _builders
    with _lock:
        _builders -= 1
        # Another tracer may have put its own wrapper on top; it will take that off itself.
        if _builders == 0 and torch.nn.Module.__call__ is _call:
            torch.nn.Module.__call__ = _original


def _call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    if not executing_eagerly():
        symbols = (x for x in leaves_of((args, kwargs)) if isinstance(x, SymbolicTensor))
        symbol = next(symbols, None)
        if symbol is not None:
            return symbol.graph.call_module(module, args, kwargs)
    return _original(module, *args, **kwargs)

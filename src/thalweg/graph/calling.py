"""`Calling`: the calls of one module, and what the module has again after each.

`functional_call` puts a run's tensors into the module itself, where other threads would see them:
so there is one call at a time. A child that is forked meanwhile has the module as it was then, and
not the thread that would end the call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from thalweg.locks import Lock, on_fork

_lock = Lock()


class Calling:
    """The calls of one module.

    Args:
        module: The module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._own: list[tuple[dict[str, Any], str, Any]] = []  # while it is called
        on_fork(self, Calling._renew)

    @contextlib.contextmanager
    def alone(self) -> Iterator[torch.nn.Module]:
        """Give the module to a block that puts tensors into it, and holds all others back."""
        with _lock:
            before, self._own = self._own, self._own or _own_tensors(self._module)
            try:
                yield self._module
            finally:
                self._own = before

    def _renew(self) -> None:
        """In a forked child: give the module its own again, if another thread was calling it."""
        if _lock.is_abandoned():
            own, self._own = self._own, []
            for tensors, name, tensor in own:
                tensors[name] = tensor


def _own_tensors(module: torch.nn.Module) -> list[tuple[dict[str, Any], str, Any]]:
    return [
        (tensors, name, tensor)
        for layer in module.modules()
        for tensors in (layer._parameters, layer._buffers)
        for name, tensor in tensors.items()
    ]

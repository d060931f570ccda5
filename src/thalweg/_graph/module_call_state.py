"""Calls of modules: one at a time, and each module gets its own tensors back afterwards.

`functional_call` puts a run's tensors into the module itself, where other threads would see them. A
child that is forked meanwhile has the module as it was then, and not the thread that would end the
call.
"""

from __future__ import annotations

from typing import Any

import torch

from thalweg._base.locks import Lock, on_fork


class Calls(Lock):
    """Held while modules are called with tensors that are not their own."""

    def __init__(self) -> None:
        super().__init__()
        self._pending_calls: list[list[tuple[dict[str, Any], str, Any]]] = []  # the innermost last
        on_fork(self, Calls._put_back)

    def begin_call(self, module: torch.nn.Module, is_outermost: bool) -> None:
        """Remember a module's own tensors; the lock is held by now."""
        if is_outermost:
            self._pending_calls.clear()  # of calls that failed
        self._pending_calls.append(
            [
                (tensors, name, tensor)
                for layer in module.modules()
                for tensors in (layer._parameters, layer._buffers)
                for name, tensor in tensors.items()
            ]
        )

    def end_call(self) -> None:
        """Forget the innermost call: its module has its own tensors again."""
        self._pending_calls.pop()

    def _put_back(self) -> None:
        """Put back, in a forked child, the tensors of modules that another thread was calling."""
        if not self.is_abandoned():
            return
        while self._pending_calls:
            for tensors, name, tensor in self._pending_calls.pop():
                tensors[name] = tensor


calls = Calls()

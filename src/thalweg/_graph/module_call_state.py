"""Lock for calls of modules with tensors of a session, and repair of modules in forked children.

torch's `functional_call` puts tensors into the module for the time of the call, where other threads
would see them. A child that is forked meanwhile has the module in this state, without the thread
that would put the module's own tensors back.
"""

from __future__ import annotations

from typing import Any

import torch

from thalweg._base.locks import Lock, on_fork


class Calls(Lock):
    """Lock that is held while modules are called with tensors of a session."""

    def __init__(self) -> None:
        super().__init__()
        # (dict of tensors, name, tensor) triples of each call, the innermost call last.
        self._pending_calls: list[list[tuple[dict[str, Any], str, Any]]] = []
        on_fork(self, Calls._restore_modules)

    def begin_call(self, module: torch.nn.Module, is_outermost: bool) -> None:
        """Save the parameters and buffers of a module, to restore them in a forked child.

        If `is_outermost`, first drop the tensors saved by failed calls. The caller holds the lock.
        """
        if is_outermost:
            self._pending_calls.clear()
        self._pending_calls.append(
            [
                (tensors, name, tensor)
                for layer in module.modules()
                for tensors in (layer._parameters, layer._buffers)
                for name, tensor in tensors.items()
            ]
        )

    def end_call(self) -> None:
        """Drop the record of the innermost call, whose module has its tensors back."""
        self._pending_calls.pop()

    def _restore_modules(self) -> None:
        """Restore, in a forked child, tensors of modules that another thread was calling."""
        if not self.is_abandoned():
            return
        while self._pending_calls:
            for tensors, name, tensor in self._pending_calls.pop():
                tensors[name] = tensor


calls = Calls()

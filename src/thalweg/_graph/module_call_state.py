"""Lock for calls of modules with tensors of a session, and repair of modules in forked children.

During a call, torch's `functional_call` replaces the tensors of the module, also for other threads.
A child that is forked during the call lacks the thread that puts the module's tensors back.
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

        The caller holds the lock. In an outermost call, first drop tensors saved by failed calls.
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

"""Serialization of functional module calls, with repair of modules in forked children.

`functional_call` puts tensors of a run into the module, where other threads would see them. A child
that is forked meanwhile has the module in this state, without the thread that would end the call.
"""

from __future__ import annotations

from typing import Any

import torch

from thalweg._base.locks import Lock, on_fork


class Calls(Lock):
    """Lock that is held while modules are called with tensors of a session."""

    def __init__(self) -> None:
        super().__init__()
        self._pending_calls: list[list[tuple[dict[str, Any], str, Any]]] = []  # the innermost last
        on_fork(self, Calls._restore_modules)

    def begin_call(self, module: torch.nn.Module, is_outermost: bool) -> None:
        """Save the parameters and buffers of a module, to restore them in a forked child.

        An outermost call first drops the tensors saved by failed calls. The lock must be held.
        """
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

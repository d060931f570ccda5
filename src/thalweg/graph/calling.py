"""The calls of modules: one at a time, and what a module has again after each.

`functional_call` puts a run's tensors into the module itself, where other threads would see them. A
child that is forked meanwhile has the module as it was then, and not the thread that would end the
call.
"""

from __future__ import annotations

from typing import Any

import torch

from thalweg.ground.locks import Lock, on_fork


class Calls(Lock):
    """Held while modules are called with tensors that are not their own."""

    def __init__(self) -> None:
        super().__init__()
        self._under_way: list[list[tuple[dict[str, Any], str, Any]]] = []  # the innermost last
        on_fork(self, Calls._put_back)

    def begin_call(self, module: torch.nn.Module, is_outermost: bool) -> None:
        """Remember what a module has; it is held by now."""
        if is_outermost:
            self._under_way.clear()  # of calls that failed
        self._under_way.append(
            [
                (tensors, name, tensor)
                for layer in module.modules()
                for tensors in (layer._parameters, layer._buffers)
                for name, tensor in tensors.items()
            ]
        )

    def end_call(self) -> None:
        """The module that was begun last has its own again."""
        self._under_way.pop()

    def _put_back(self) -> None:
        """In a forked child: give modules their own again that another thread was calling."""
        if not self.is_abandoned():
            return
        while self._under_way:
            for tensors, name, tensor in self._under_way.pop():
                tensors[name] = tensor


calls = Calls()

"""`OneSweep`: an optimizer of torch's kind whose step is one pass over memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thalweg.formula import Rule
from thalweg.locks import Guard
from thalweg.optim.groups import Group
from thalweg.optim.part import Part
from thalweg.tracing import untraced


class Kept:
    """What an optimizer keeps that no state has; one that was copied or loaded begins anew."""

    def __init__(self) -> None:
        self._lock = Guard(self)
        self.parts: dict[Rule, Part] = {}


class OneSweep:
    """What takes the steps of a subclass of `torch.optim.Optimizer`; all else is that one's."""

    state: Any
    param_groups: list[Group]

    @property
    def _own(self) -> Kept:
        # Not made by a constructor: torch restores what it copies and loads without one.
        return vars(self).get("_kept") or vars(self).setdefault("_kept", Kept())

    @untraced
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step with the gradients in `grad` of the parameters.

        Args:
            closure: Optional. Computes the loss again, and the gradients; called once.

        Returns:
            What the closure returned, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        own = self._own
        with own._lock:
            self._take_step(own.parts)
        return loss

    def _take_step(self, parts: dict[Rule, Part]) -> None:
        raise NotImplementedError

"""Parameters of 16 bits: masters in float32 beside them, and what their state is kept in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.core.blocks import laid_out
from thalweg.core.slots import dtype_of
from thalweg.formula import Slot
from thalweg.optim.averaging import EMA
from thalweg.variable import REDUCED

MASTER = "master"


class Kinds(NamedTuple):
    """What the state of parameters is kept in.

    Attributes:
        masters: Whether parameters of 16 bits have masters.
        state: The dtype of slots, where it is not that of what a step updates.
    """

    masters: bool = False
    state: torch.dtype | None = None

    def of(self, slot: Slot, param: Tensor) -> torch.dtype:
        """The dtype of a parameter's slot."""
        dtype = dtype_of(slot, param)
        if slot.scalar or slot.dtype is not None:
            return dtype
        if slot.name == EMA:  # one of 16 bits would not move
            return torch.float32 if dtype in REDUCED else dtype
        if self.state is not None:
            return self.state
        return torch.float32 if self.masters and dtype in REDUCED else dtype


PLAIN = Kinds()


class Masters:
    """The masters of parameters, which steps update, and which parameters follow."""

    def __init__(self) -> None:
        self._params: Sequence[Tensor] = ()
        self._targets: list[Tensor] = []
        self._versions: list[int] = []

    def stand_for(self, params: Sequence[Tensor], state: Mapping[Tensor, Any]) -> list[Tensor]:
        """Make the masters that parameters lack.

        Returns:
            What a step updates: masters, and parameters of other types.
        """
        lacking = [p for p in params if p.dtype in REDUCED and MASTER not in state.get(p, {})]
        made = laid_out(lacking, [torch.float32] * len(lacking), 0.0)
        fresh = {id(param): master for param, master in zip(lacking, made, strict=True)}
        self._params = list(params)
        self._targets = [
            fresh.get(id(param)) if id(param) in fresh else state.get(param, {}).get(MASTER, param)
            for param in params
        ]
        self._versions = []
        return self.again()

    def again(self) -> list[Tensor]:
        """The same. What others wrote to parameters since the last step is taken over."""
        versions = [param._version for param in self._params]
        if self._versions != versions:
            for param, master in zip(self._params, self._targets, strict=True):
                if master is not param:
                    own = param.detach()
                    master.copy_(torch.where(master.to(own.dtype) == own, master, own))
            self._versions = versions
        return self._targets

    def settle(self) -> None:
        """A step was written."""
        self._versions = [param._version for param in self._params]

"""What stands for parameters in a step: masters in float32, or on the CPU; and their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.core.blocks import laid_out
from thalweg.core.slots import dtype_of
from thalweg.engines import layout
from thalweg.formula import Slot
from thalweg.optim.averaging import EMA
from thalweg.variable import REDUCED

MASTER = "master"


class Kinds(NamedTuple):
    """What the state of parameters is kept in.

    Attributes:
        masters: Whether parameters of 16 bits have masters.
        state: The dtype of slots, where it is not that of what a step updates.
        device: Where slots are, and what a step updates, if not with the parameters.
    """

    masters: bool = False
    state: torch.dtype | None = None
    device: torch.device | None = None

    @property
    def stand_in(self) -> bool:
        """Whether something stands for parameters."""
        return self.masters or self.device is not None

    def has_master(self, param: Tensor) -> bool:
        """Whether a parameter has a master, which is state."""
        return self.masters and param.dtype in REDUCED

    def is_away(self, param: Tensor) -> bool:
        """Whether a parameter is on another device than its state."""
        return self.device is not None and layout.is_far(param, self.device)

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
    """What steps update in place of parameters, and these follow.

    A master has more bits and is state. What else stands for a parameter of another device has its
    value.

    Args:
        kinds: Which parameters have what.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._params: Sequence[Tensor] = ()
        self._targets: list[Tensor] = []
        self._versions: list[int] = []
        self._away: dict[int, tuple[Tensor, Tensor]] = {}  # by `id` of parameters

    def stand_for(self, params: Sequence[Tensor], state: Mapping[Tensor, Any]) -> list[Tensor]:
        """Make what parameters lack.

        Returns:
            What a step updates: masters, what else stands for parameters, and others themselves.
        """
        kinds = self._kinds
        lacking = [p for p in params if kinds.has_master(p) and MASTER not in state.get(p, {})]
        made = laid_out(lacking, [torch.float32] * len(lacking), 0.0, device=kinds.device)
        fresh = {id(param): master for param, master in zip(lacking, made, strict=True)}
        away = [p for p in params if kinds.is_away(p) and not kinds.has_master(p)]
        self._away = {id(param): self._standing_for(param) for param in away}
        fresh |= {key: target for key, (_, target) in self._away.items()}
        self._params = list(params)
        self._targets, self._versions = [], []
        for param in params:
            own: Mapping[str, Tensor] = state.get(param) or {}
            self._targets.append(fresh.get(id(param), own.get(MASTER, param)))
        return self.again()

    def _standing_for(self, param: Tensor) -> tuple[Tensor, Tensor]:
        known = self._away.get(id(param))
        if known is not None and known[0] is param and known[1].shape == param.shape:
            return known
        here = torch.empty_like(param, device=self._kinds.device, pin_memory=param.is_cuda)
        return param, here.detach().copy_(param.detach())

    def again(self) -> list[Tensor]:
        """The same. What others wrote to parameters since the last step is taken over."""
        versions = [param._version for param in self._params]
        if self._versions != versions:
            for param, master in zip(self._params, self._targets, strict=True):
                if master is not param:
                    own = param.detach().to(master.device)
                    master.copy_(torch.where(master.to(own.dtype) == own, master, own))
            self._versions = versions
        return self._targets

    def settle(self) -> None:
        """A step was written."""
        self._versions = [param._version for param in self._params]

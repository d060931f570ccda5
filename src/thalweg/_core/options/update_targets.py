"""What stands for parameters in a step: masters in float32, or on the CPU; and their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from thalweg._core.options.accumulation import SUM
from thalweg._core.slots import dtype_of
from thalweg._core.state_allocation import laid_out
from thalweg._engines import layout, resumed
from thalweg.formula import Slot
from thalweg.variable import REDUCED, name_of, variable_constraint

MASTER = "master"


class StateStorage(NamedTuple):
    """What the state of parameters is kept in.

    Attributes:
        masters: Whether parameters of 16 bits have masters.
        state: The dtype of slots, where it is not that of what a step updates.
        device: Where slots are, and what a step updates, if not with the parameters.
        sums: Whether sums of gradients are beside it while they are added up.
        beginning: Names of slots that begin at the parameter; those of 16 bits would not move.
        is_split: Whether parameters are the upper part of weights.
    """

    masters: bool = False
    state: torch.dtype | None = None
    device: torch.device | None = None
    sums: bool = False
    beginning: frozenset[str] = frozenset()
    is_split: bool = False

    @property
    def stand_in(self) -> bool:
        """Whether something stands for parameters."""
        return self.masters or self.device is not None

    def has_master(self, param: Tensor) -> bool:
        """Whether a parameter has a master, which is state."""
        return self.masters and param.dtype in REDUCED

    def updated_dtype(self, param: Tensor) -> torch.dtype:
        """The dtype of what a step updates: a parameter, or its master."""
        return torch.float32 if self.has_master(param) else param.dtype

    def is_away(self, param: Tensor) -> bool:
        """Whether a parameter is on another device than its state."""
        return self.device is not None and layout.is_far(param, self.device)

    def home_of(self, name: str, param: Tensor) -> torch.device:
        """The device of a tensor in a parameter's state; sums are where the gradients are."""
        return param.device if self.device is None or name == SUM else self.device

    def brought_home(self, own: Mapping[str, object], param: Tensor) -> dict[str, Tensor]:
        """Tensors of a parameter's state that others have moved to its device."""
        if not self.is_away(param):
            return {}
        found = {name: each for name, each in own.items() if isinstance(each, Tensor)}
        homes = {name: self.home_of(name, param) for name in found}
        return {n: each.to(homes[n]) for n, each in found.items() if each.device != homes[n]}

    def of(self, slot: Slot, param: Tensor) -> torch.dtype:
        """The dtype of a parameter's slot."""
        dtype = dtype_of(slot, param)
        if slot.scalar or slot.dtype is not None:
            return dtype
        if slot.name in self.beginning:
            return torch.float32 if dtype in REDUCED else dtype
        if self.state is not None:
            return self.state
        is_wide = self.masters or self.is_split
        return torch.float32 if is_wide and dtype in REDUCED else dtype

    def widen_slots(self, own: dict[str, object], slots: Sequence[Slot], param: Tensor) -> None:
        """Have slots of 16 bits beside a master, or a correction, be what the options say.

        Args:
            own: The state of the parameter, which is changed.
            slots: The rule's.
            param: The parameter.
        """
        for slot in slots if self.is_split or self.has_master(param) else ():
            value = own.get(slot.name)
            if isinstance(value, Tensor) and value.dtype in REDUCED:
                own[slot.name] = value.to(self.of(slot, param))


PLAIN = StateStorage()


class UpdateTargets:
    """What steps update in place of parameters, which follow it.

    A master has more bits and is state. What else stands for a parameter of another device has its
    value. What others write to a parameter is seen by the update itself, which reads it beside its
    master; of a parameter of another device, by torch's count of what was written.

    Args:
        kinds: Which parameters have what.
    """

    def __init__(self, kinds: StateStorage) -> None:
        self._kinds = kinds
        self._params: Sequence[Tensor] = ()
        self._targets: list[Tensor] = []
        self._places: list[Any] = []
        # Parameters elsewhere, with what stands for them; by `id` what their version was when both
        # agreed, and their places where they have no master.
        self._far: list[tuple[Tensor, Tensor]] = []
        self._versions: dict[int, int] = {}
        self._away: dict[int, tuple[Tensor, Any, Tensor]] = {}

    def stand_for(self, params: Sequence[Tensor], state: Mapping[Tensor, Any]) -> list[Tensor]:
        """Make what parameters lack.

        Returns:
            What a step updates: masters, what else stands for parameters, and others themselves.
        """
        kinds = self._kinds
        lacking = [p for p in params if kinds.has_master(p) and MASTER not in state.get(p, {})]
        made = laid_out(lacking, [torch.float32] * len(lacking), 0.0, device=kinds.device)
        lacking = zip(lacking, made, strict=True)
        fresh = {id(param): master.copy_(param.detach()) for param, master in lacking}
        away = [p for p in params if kinds.is_away(p) and not kinds.has_master(p)]
        fresh |= {id(param): self._standing_for(param) for param in away}
        self._params = list(params)
        self._places = [_place_of(param) for param in params]
        self._targets = []
        for param in params:
            own: Mapping[str, Tensor] = state.get(param) or {}
            self._targets.append(fresh.get(id(param), own.get(MASTER, param)))
            if kinds.has_master(param):  # which may have been loaded
                self._versions.pop(id(param), None)
        both = zip(params, self._targets, strict=True)
        self._far = [(param, target) for param, target in both if kinds.is_away(param)]
        return self.refresh_targets()

    def are_in_place(self) -> bool:
        """Whether parameters lie where they lay, as what they were."""
        # `param.data = other` is no write that torch counts.
        return all(map(_lies_at, self._params, self._places))

    def _standing_for(self, param: Tensor) -> Tensor:
        known = self._away.get(id(param))
        if known is not None and known[0] is param and _lies_at(param, known[1]):
            return known[2]
        # In the order of their elements, as the slots of a parameter with gaps.
        order = torch.preserve_format if layout.is_dense(param) else torch.contiguous_format
        here = torch.empty_like(
            param, device=self._kinds.device, pin_memory=param.is_cuda, memory_format=order
        )
        here = here.detach().copy_(param.detach())
        self._away[id(param)] = param, _place_of(param), here
        self._versions[id(param)] = param._version
        return here

    def refresh_targets(self) -> list[Tensor]:
        """The same. What others wrote to parameters elsewhere since the last step is taken over."""
        for param, target in self._far:
            version = param._version
            if version != self._versions.get(id(param)):
                layout.check_memory(param, f"'{name_of(param)}'")
                layout.check_memory(target, f"What stands for '{name_of(param)}'")
                own = param.detach().to(target.device)
                target.copy_(own if own.dtype == target.dtype else resumed(target, own))
                self._versions[id(param)] = version
        return self._targets

    def settle(self) -> None:
        """A step was written."""
        for param, _ in self._far:
            self._versions[id(param)] = param._version
            if variable_constraint(param) is not None:  # what it made is to be taken over
                del self._versions[id(param)]


def _place_of(param: Tensor) -> tuple[object, object]:
    # An address may be another's by now; that of a storage to which somebody refers is not.
    return StorageWeakRef(param.untyped_storage()), _kind_of(param)


def _lies_at(param: Tensor, place: tuple[Any, Any]) -> bool:
    memory, kind = place
    same = memory.cdata == param.untyped_storage()._cdata  # pyright: ignore
    return same and kind == _kind_of(param)


def _kind_of(param: Tensor) -> tuple[Any, ...]:
    return param.dtype, param.shape, param.stride(), param.storage_offset()

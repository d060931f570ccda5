"""Tensors that steps update instead of parameters: float32 masters, or copies on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from thalweg._core.dtensor import beside, local
from thalweg._core.options.accumulation import SUM
from thalweg._core.slots import dtype_of
from thalweg._core.state_allocation import laid_out
from thalweg._engines import layout, resumed
from thalweg.formula import Slot
from thalweg.variable import REDUCED, name_of, variable_constraint

MASTER = "master"
# Key of the shape of a parameter in a state with encoded slots. These are one row of bytes, which
# fits every parameter of as many elements. The value is a tensor, because flat state dicts of
# `torch.distributed.checkpoint` contain only tensors and numbers.
ENCODED_SHAPE = "encoded_shape"


class StateStorage(NamedTuple):
    """Dtypes and devices of the state of parameters.

    Attributes:
        masters: True if 16-bit parameters have float32 master weights.
        state: Dtype of slots, or None for the dtype of the updated tensor.
        device: Device of slots and updated tensors, or None for the device of the parameters.
        sums: True if the state has sums of gradients during accumulation.
        beginning: Names of slots that are initialized with the parameter. They are never 16-bit,
            which would round small moves away.
        is_split: True if parameters are the upper part of split weights.
    """

    masters: bool = False
    state: torch.dtype | None = None
    device: torch.device | None = None
    sums: bool = False
    beginning: frozenset[str] = frozenset()
    is_split: bool = False

    @property
    def stand_in(self) -> bool:
        """True if steps update other tensors in place of some parameters."""
        return self.masters or self.device is not None

    def has_master(self, param: Tensor) -> bool:
        """Return True if the parameter has a master weight in its state."""
        return self.masters and param.dtype in REDUCED

    def updated_dtype(self, param: Tensor) -> torch.dtype:
        """Return the dtype of the tensor that a step updates: the parameter, or its master."""
        return torch.float32 if self.has_master(param) else param.dtype

    def is_away(self, param: Tensor) -> bool:
        """Return True if the parameter is on another device than its state."""
        return self.device is not None and layout.is_far(param, self.device)

    def home_of(self, name: str, param: Tensor) -> torch.device:
        """Return the device of a state entry of the parameter; sums are with the gradients."""
        return param.device if self.device is None or name == SUM else self.device

    def brought_home(self, param_state: Mapping[str, object], param: Tensor) -> dict[str, Tensor]:
        """Copy state entries of a parameter to the devices that `home_of(name, param)` returns.

        Return {name: copy} of entries on other devices; {} if the state is not offloaded.
        """
        if not self.is_away(param):
            return {}
        return {
            name: tensor.to(self.home_of(name, param))
            for name, tensor in param_state.items()
            if isinstance(tensor, Tensor) and tensor.device != self.home_of(name, param)
        }

    def of(self, slot: Slot, param: Tensor) -> torch.dtype:
        """Return the dtype in which a slot of a parameter is stored.

        A scalar slot, or a slot with a dtype in the rule, has the rule's dtype. A slot in
        `self.beginning` has the parameter's dtype, or float32 for a 16-bit parameter. Any other
        slot has the dtype `self.state`. If `self.state` is None, the slot has the parameter's
        dtype, or float32 for a 16-bit parameter with a master or split weights.
        """
        dtype = dtype_of(slot, param)
        if slot.scalar or slot.dtype is not None:
            return dtype
        if slot.name in self.beginning:
            return torch.float32 if dtype in REDUCED else dtype
        if self.state is not None:
            return self.state
        is_full_precision = self.masters or self.is_split
        return torch.float32 if is_full_precision and dtype in REDUCED else dtype

    def widen_slots(
        self, param_state: dict[str, object], slots: Sequence[Slot], param: Tensor
    ) -> None:
        """Convert 16-bit slots of a parameter to the dtype that `of` returns, in place.

        Do nothing unless the parameter has a master or is the upper part of a split weight.

        Args:
            param_state: State of the parameter, changed in place.
            slots: Slots of the rule.
        """
        for slot in slots if self.is_split or self.has_master(param) else ():
            slot_tensor = param_state.get(slot.name)
            if isinstance(slot_tensor, Tensor) and slot_tensor.dtype in REDUCED:
                param_state[slot.name] = slot_tensor.to(self.of(slot, param))


PLAIN = StateStorage()


class UpdateTargets:
    """Tensors that steps update instead of parameters.

    A target is a master weight, a CPU copy of an offloaded parameter (its stand-in), or the
    parameter itself. If a user writes to a parameter, the change is detected and copied to the
    target.

    Args:
        storage: Dtypes and devices of state and targets.
    """

    def __init__(self, storage: StateStorage) -> None:
        self._storage = storage
        self._params: Sequence[Tensor] = ()
        self._targets: list[Tensor] = []
        self._memory_keys: list[Any] = []
        # Offloaded parameters with their targets; by `id`, their versions when both were equal, and
        # the stand-ins of those without a master.
        self._offloaded: list[tuple[Tensor, Tensor]] = []
        self._versions: dict[int, tuple[int, int]] = {}
        self._stand_ins: dict[int, tuple[Tensor, Any, Tensor]] = {}

    def stand_for(self, params: Sequence[Tensor], state: Mapping[Tensor, Any]) -> list[Tensor]:
        """Set the parameters of the next steps; create missing masters and offloaded copies.

        Return a target for each parameter: its master, its copy on the device of the state, or the
        parameter itself. New masters are not put into `state`.

        Args:
            state: State of the optimizer, with masters.
        """
        storage = self._storage
        lacking = [p for p in params if storage.has_master(p) and MASTER not in state.get(p, {})]
        shards = list(map(local, lacking))
        devices = [storage.device or shard.device for shard in shards]
        masters = laid_out(shards, [torch.float32] * len(lacking), 0.0, devices=devices)
        new_targets = {
            id(param): beside(master.copy_(shard.detach()), param)
            for param, shard, master in zip(lacking, shards, masters, strict=True)
        }
        offloaded = [p for p in params if storage.is_away(p) and not storage.has_master(p)]
        new_targets |= {id(param): self._stand_in_of(param) for param in offloaded}
        self._params = list(params)
        self._memory_keys = [_make_memory_key(param) for param in params]
        self._targets = []
        for param in params:
            param_state: Mapping[str, Tensor] = state.get(param) or {}
            self._targets.append(new_targets.get(id(param), param_state.get(MASTER, param)))
            # The master may have been loaded, so the parameter has to be compared with it again.
            if storage.has_master(param):
                self._versions.pop(id(param), None)
        pairs = zip(params, self._targets, strict=True)
        self._offloaded = [(param, target) for param, target in pairs if storage.is_away(param)]
        return self.refresh_targets()

    def are_in_place(self) -> bool:
        """Return True if memory, dtype and layout of all parameters are unchanged."""
        # The version counter does not count `param.data = other`.
        return all(map(_lies_at, self._params, self._memory_keys))

    def _stand_in_of(self, param: Tensor) -> Tensor:
        """Return the cached copy of an offloaded parameter on the device of the state.

        Create and cache a new copy if there is none, or if the parameter's memory was replaced.
        """
        cached = self._stand_ins.get(id(param))
        if cached is not None and cached[0] is param and _lies_at(param, cached[1]):
            return cached[2]
        # A parameter with gaps has contiguous slots, so the order of its copy must be the same.
        shard = local(param).detach()
        memory_format = torch.preserve_format if layout.is_dense(shard) else torch.contiguous_format
        device = self._storage.device
        host_copy = torch.empty_like(
            shard, device=device, pin_memory=shard.is_cuda, memory_format=memory_format
        )
        stand_in = beside(host_copy.copy_(shard), param)
        self._stand_ins[id(param)] = param, _make_memory_key(param), stand_in
        self._versions[id(param)] = _read_version(param)
        return stand_in

    def refresh_targets(self) -> list[Tensor]:
        """Update the targets of offloaded parameters that were written since the last step.

        Return the targets of all parameters, in the order of `stand_for`.
        """
        for param, target in self._offloaded:
            version = _read_version(param)
            if version != self._versions.get(id(param)):
                shard, host_copy = local(param).detach(), local(target)
                layout.check_memory(shard, f"'{name_of(param)}'")
                layout.check_memory(host_copy, f"What stands for '{name_of(param)}'")
                new_weights = shard.to(host_copy.device)
                host_copy.copy_(
                    new_weights
                    if new_weights.dtype == host_copy.dtype
                    else resumed(host_copy, new_weights)
                )
                self._versions[id(param)] = version
        return self._targets

    def settle(self) -> None:
        """Record the versions of offloaded parameters, which a step has just written."""
        for param, _ in self._offloaded:
            self._versions[id(param)] = _read_version(param)
            # The constraint has changed the parameter alone: the next refresh copies its output.
            if variable_constraint(param) is not None:
                del self._versions[id(param)]


def _read_version(param: Tensor) -> tuple[int, int]:
    """Return torch's counters of writes to a parameter, and to the local part of a DTensor."""
    return param._version, local(param)._version


def _make_memory_key(param: Tensor) -> tuple[object, object]:
    """Return a key of the parameter's storage, dtype and layout for `_lies_at`."""
    # A weak reference keeps the address of a freed storage from being reused.
    return StorageWeakRef(local(param).untyped_storage()), _read_metadata(param)


def _lies_at(param: Tensor, memory_key: tuple[Any, Any]) -> bool:
    """Return True if the parameter still has the storage, dtype and layout of the key."""
    storage_ref, metadata = memory_key
    is_same_storage = storage_ref.cdata == local(param).untyped_storage()._cdata  # pyright: ignore
    return is_same_storage and metadata == _read_metadata(param)


def _read_metadata(param: Tensor) -> tuple[Any, ...]:
    """Return dtype, shape, strides and storage offset of the parameter."""
    return param.dtype, param.shape, param.stride(), param.storage_offset()

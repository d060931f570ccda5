"""States with full tensors for DTensor parameters: cutting of shards, and gathering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg._core.dtensor import beside, is_on_mesh, local
from thalweg._core.options.update_targets import MASTER
from thalweg._core.param_groups import Group
from thalweg._core.quantized_slots import codec_of, likeness_of
from thalweg._core.state import flaw, mismatch
from thalweg.distribute.sharding.shard_index import ShardedTensor, are_known, sharded_tensor
from thalweg.formula import Slot
from thalweg.optim.dtensor_params import make_local_shards
from thalweg.optim.state_mismatch import members_here, sizes


def cut_state(optimizer: Any, saved_state: dict[str, Any]) -> dict[str, Any]:
    """Return a state in which DTensors replace the full tensors of DTensor parameters.

    Every rank passes the full tensors and cuts its own part, so nothing is sent. An entry whose
    shape does not fit stays unchanged; the loader raises for it.

    Args:
        saved_state: The state dict, in a valid form, with slots in the optimizer's codecs.

    Raises:
        CheckpointMismatchError: The placements of a parameter do not determine each rank's
            elements.
    """
    groups, saved_groups = optimizer.param_groups, saved_state["param_groups"]
    # The loader raises for groups of other sizes.
    if sizes(groups) != sizes(saved_groups):
        return saved_state
    states, problems = dict(saved_state["state"]), list[str]()
    for group, saved_group in zip(groups, saved_groups, strict=True):
        for param, key, label in members_here(optimizer, group, saved_group):
            entries: Mapping[str, Any] | None = states.get(key)
            if not is_on_mesh(param) or not isinstance(entries, Mapping):
                continue
            slots = _select_slots(optimizer, group, param)
            full = {name: x for name, x in entries.items() if name in slots and _is_full(x)}
            if full and not are_known(param):
                problems.append(_describe_unknown(param, label))
                continue
            cut = {name: _cut_slot(x, param, slots[name]) for name, x in full.items()}
            states[key] = {**entries, **cut}
    if problems:
        raise mismatch(problems, type(optimizer).__name__)
    return {**saved_state, "state": states}


def _describe_unknown(param: Any, label: object) -> str:
    """Return why a full state cannot be cut like a parameter."""
    placements = ", ".join(map(str, param.placements))
    return (
        f"'{label}' is a DTensor of shape {tuple(param.shape)}, whose placements ({placements})"
        " do not determine the elements of each rank, and its state is of full tensors: load a"
        " state of DTensors, such as by torch.distributed.checkpoint"
    )


def _is_full(entry: object) -> bool:
    """Return True if an entry is a tensor with dimensions and memory, and no DTensor."""
    if not isinstance(entry, Tensor) or is_on_mesh(entry):
        return False
    return entry.dim() > 0 and flaw(entry) is None


def _select_slots(optimizer: Any, group: Group, param: Tensor) -> dict[str, Slot]:
    """Return the slots of a parameter by name, including its master."""
    has_rule = hasattr(optimizer, "rule")
    rule = optimizer.rule_of(group) if has_rule else optimizer.wrapped_rule(group, param)
    slots = {slot.name: slot for slot in rule.slots if not slot.scalar}
    return {MASTER: Slot(MASTER), **slots}


def _cut_slot(full: Tensor, param: Any, slot: Slot) -> Tensor:
    """Return this rank's part of a full slot as a DTensor.

    Return `full` itself if it has an unexpected shape.
    """
    codec = codec_of(slot, param)
    if slot.is_shaped:
        return _cut_shaped(full, param, slot)
    if codec is not None:
        return _cut_like(full, param, likeness_of(codec, param))
    return _cut_like(full, param, param)


def _cut_like(full: Tensor, param: Any, template: Tensor) -> Tensor:
    """Return this rank's part of a tensor, placed as a parameter, with the shape of `template`."""
    if full.shape != template.shape:
        return full
    tensor = sharded_tensor(param)._replace(shape=template.shape)
    return beside(_read_part(full, param, tensor), param, template)


def _cut_shaped(full: Tensor, param: Any, slot: Slot) -> Tensor:
    """Return this rank's part, as a DTensor, of a slot whose shape differs from its parameter's.

    Return `full` itself if it has an unexpected shape.
    """
    from torch.distributed.tensor import DTensor

    from thalweg._engines.matrix_shapes import shape_beside

    if tuple(full.shape) != tuple(shape_beside(slot, param.shape)):
        return full
    tensor = sharded_tensor(param).slot(tuple(full.shape))
    local_tensor = _read_part(full, param, tensor)
    options: Any = {"run_check": False, "shape": full.shape, "stride": full.stride()}
    return DTensor.from_local(local_tensor, param.device_mesh, tensor.placements, **options)


def _read_part(full: Tensor, param: Any, tensor: ShardedTensor) -> Tensor:
    """Return a copy of this rank's part of a tensor that is sharded like a parameter."""
    shard = tensor.shard(tuple(param.device_mesh.get_coordinate()))
    return shard.read(full.detach()).to(local(param).device, copy=True).contiguous()


def gather_full(tensor: Tensor) -> Tensor:
    """Return the full tensor of a DTensor on the CPU of rank 0; return an empty tensor elsewhere.

    All ranks call this function. A tensor that is not a DTensor is returned unchanged.
    """
    shards = make_local_shards([tensor])
    if shards is None:
        return tensor
    full = shards.whole(shards.part(tensor), tensor)
    return full.new_empty(0) if torch.distributed.get_rank() else full.cpu()

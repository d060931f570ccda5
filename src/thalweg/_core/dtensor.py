"""DTensor helpers that do not import `torch.distributed.tensor`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from thalweg.variable import name_of


def is_imported() -> bool:
    """Return True if `torch.distributed.tensor` is imported; without it there are no DTensors."""
    return "torch.distributed.tensor" in sys.modules


def is_on_mesh(tensor: object) -> bool:
    """Return True if an object is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def any_on_mesh(tensors: Iterable[object]) -> bool:
    """Return True if a tensor is a DTensor; cheap, because each step calls this."""
    return is_imported() and any(map(is_on_mesh, tensors))


def local(tensor: Tensor) -> Tensor:
    """Return the detached local part of a DTensor; any other tensor unchanged."""
    return tensor.to_local().detach() if is_on_mesh(tensor) else tensor  # pyright: ignore


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor of a DTensor, on each rank; any other tensor unchanged."""
    return tensor.full_tensor() if is_on_mesh(tensor) else tensor  # pyright: ignore


def beside(local_tensor: Tensor, param: Tensor, like: Tensor | None = None) -> Tensor:
    """Return `local_tensor` as a DTensor with the mesh and placements of `param`.

    Args:
        local_tensor: The local part; returned unchanged if `param` is not a DTensor.
        like: Optional. A tensor with the result's full shape and strides; by default `param`.
    """
    if not is_on_mesh(param):
        return local_tensor
    from torch.distributed.tensor import DTensor

    mesh: Any = param
    full = param if like is None else like
    # `run_check=True` would communicate between the ranks.
    options: Any = {"run_check": False, "shape": full.shape, "stride": full.stride()}
    mesh_placements = mesh.device_mesh, mesh.placements
    if local_tensor.is_meta or local_tensor.device.type == mesh.device_mesh.device_type:
        return DTensor.from_local(local_tensor, *mesh_placements, **options)
    # Offloaded: `from_local` would move the part to the device of the mesh.
    template: Any = torch.empty_like(local_tensor, device="meta")
    spec: Any = DTensor.from_local(template, *mesh_placements, **options)
    return DTensor(local_tensor, spec._spec, requires_grad=False)  # pyright: ignore


def filled_beside(shape: tuple[int, ...], value: float, param: Tensor, dtype: Any) -> Tensor:
    """Return a new tensor of shape `shape`, filled with `value`, on the device of a parameter.

    If the parameter is a DTensor, return a DTensor of full shape `shape` with `slot_placements`.
    """
    if not is_on_mesh(param):
        return torch.full(shape, value, dtype=dtype, device=param.device)
    from torch.distributed import tensor as dtensors

    mesh, full = cast("Any", param), cast("Any", dtensors).full
    placements = slot_placements(mesh.placements, len(shape))
    # `full` allocates on the device of the mesh, even for a parameter on the meta device.
    if param.is_meta:
        empty = torch.empty(shape, dtype=dtype, device="meta")
        return dtensors.distribute_tensor(empty, mesh.device_mesh, placements, src_data_rank=None)
    return full(shape, value, dtype=dtype, device_mesh=mesh.device_mesh, placements=placements)


def slot_placements(placements: Sequence[Any], ndim: int) -> list[Any]:
    """Return the placements of a slot whose shape differs from its parameter's.

    A mesh dimension that shards the parameter shards the first dimension of the slot. Any other
    mesh dimension replicates the slot.

    Args:
        placements: The placements of the parameter.
        ndim: The number of dimensions of the slot; 0 replicates it everywhere.
    """
    from torch.distributed.tensor import Replicate, Shard

    are_cut = [bool(ndim) and not placement.is_replicate() for placement in placements]
    return [Shard(0) if is_cut else Replicate() for is_cut in are_cut]


def check_whole(params: Iterable[Tensor], feature: str) -> None:
    """Raise NotImplementedError if a parameter is a DTensor; `feature` begins the message."""
    for param in filter(is_on_mesh, params if is_imported() else ()):
        raise NotImplementedError(
            f"{feature} is not defined for parameters that are DTensors, such as"
            f" '{name_of(param)}' of shape {tuple(param.shape)}."
        )

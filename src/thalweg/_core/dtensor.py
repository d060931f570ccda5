"""DTensors: what a process has of one, without the module that defines them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor


def is_imported() -> bool:
    """Whether there can be DTensors: somebody has imported their module."""
    return "torch.distributed.tensor" in sys.modules


def is_on_mesh(tensor: object) -> bool:
    """Return True if an object is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def any_on_mesh(tensors: Iterable[object]) -> bool:
    """Whether a DTensor is among them; asked in every step."""
    return is_imported() and any(map(is_on_mesh, tensors))


def local(tensor: Tensor) -> Tensor:
    """What lies in this process of a DTensor; any other tensor as it is."""
    return tensor.to_local().detach() if is_on_mesh(tensor) else tensor  # pyright: ignore


def whole(tensor: Tensor) -> Tensor:
    """All of a DTensor, on each rank; any other tensor as it is."""
    return tensor.full_tensor() if is_on_mesh(tensor) else tensor  # pyright: ignore


def beside(local_tensor: Tensor, param: Tensor) -> Tensor:
    """A tensor that is shared out as a parameter is, whose local part is `local_tensor`."""
    if not is_on_mesh(param):
        return local_tensor
    from torch.distributed.tensor import DTensor

    mesh: Any = param
    return DTensor.from_local(
        local_tensor,
        mesh.device_mesh,
        mesh.placements,
        run_check=False,
        shape=param.shape,
        stride=param.stride(),
    )


def filled_beside(shape: tuple[int, ...], number: float, param: Tensor, dtype: Any) -> Tensor:
    """A new tensor beside a parameter; of a DTensor's mesh each rank has a part of it.

    It is cut along its first dimension, as `distribute.sharding.gathered_matrices` gathers it.
    """
    if not is_on_mesh(param):
        return torch.full(shape, number, dtype=dtype, device=param.device)
    from torch.distributed import tensor as dtensors

    mesh, full = cast("Any", param), cast("Any", dtensors).full
    placements: list[Any] = [dtensors.Replicate()] * mesh.device_mesh.ndim
    if shape:
        cut = [k for k, placement in enumerate(mesh.placements) if not placement.is_replicate()]
        placements[cut[0] if cut else -1] = dtensors.Shard(0)
    return full(shape, number, dtype=dtype, device_mesh=mesh.device_mesh, placements=placements)


def check_whole(params: Iterable[Tensor], feature: str) -> None:
    """Refuse what is not defined for DTensors.

    Raises:
        NotImplementedError: One is among the parameters.
    """
    if any_on_mesh(params):
        raise NotImplementedError(f"{feature} is not defined for parameters that are DTensors.")

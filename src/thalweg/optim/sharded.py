"""Parameters that torch has shared out itself, such as those of `fully_shard`.

Their state is shared out as they are, and each rank updates what lies in its memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from thalweg.core.sharing import Sharing
    from thalweg.distribute.sharding.meshes import Locals


def is_on_mesh(tensor: Any) -> bool:
    """Whether something is a DTensor; there is none where nobody has imported their module."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def locals_of(params: Sequence[Tensor]) -> Locals | None:
    """What tells the local parts of parameters, if there are DTensors among them."""
    if not any(map(is_on_mesh, params)):
        return None
    from thalweg.distribute.sharding.meshes import Locals

    return Locals()


def sharing_of(parts: Locals) -> Sharing:
    """How a step over local parts is shared."""
    from thalweg.distribute.sharding.meshes import LocalStep

    return LocalStep(parts)


def placed(pairs: list[tuple[Any, Tensor]]) -> list[tuple[Any, Tensor]]:
    """The pairs with gradients cut as their parameters are; all ranks call this."""
    from thalweg.distribute.sharding import meshes

    return meshes.placed(pairs)


def local(tensor: Tensor) -> Tensor:
    """What lies in this process of a DTensor; any other tensor as it is."""
    return tensor.to_local().detach() if is_on_mesh(tensor) else tensor  # pyright: ignore


def whole(tensor: Tensor) -> Tensor:
    """All of a DTensor, on each rank; any other tensor as it is."""
    return tensor.full_tensor() if is_on_mesh(tensor) else tensor  # pyright: ignore


def beside(own: Tensor, param: Tensor) -> Tensor:
    """A tensor that is shared out as a parameter is, whose local part is `own`."""
    if not is_on_mesh(param):
        return own
    from torch.distributed.tensor import DTensor

    mesh: Any = param
    return DTensor.from_local(
        own,
        mesh.device_mesh,
        mesh.placements,
        run_check=False,
        shape=param.shape,
        stride=param.stride(),
    )


def cut(value: Tensor, own: Tensor) -> Tensor:
    """The local part of a value, given as a whole or as a DTensor, which belongs where `own` is."""
    if not is_on_mesh(own):
        return value
    from thalweg.distribute.sharding.meshes import Locals

    there: Any = own
    if is_on_mesh(value):
        value = value.redistribute(there.device_mesh, there.placements)  # pyright: ignore
    return Locals().cut(value, own)


def check_whole(params: Iterable[Tensor], what: str) -> None:
    """Refuse what is not defined for DTensors.

    Raises:
        NotImplementedError: One is among the parameters.
    """
    if any(map(is_on_mesh, params)):
        raise NotImplementedError(f"{what} is not defined for parameters that are DTensors.")

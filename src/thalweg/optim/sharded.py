"""Parameters that torch has shared out itself, such as those of `fully_shard`.

Their state is shared out as they are, and each rank updates what lies in its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from thalweg.core.meshes import any_on_mesh
from thalweg.core.state import Entry, Part

if TYPE_CHECKING:
    from thalweg.core.sharing import Sharing
    from thalweg.distribute.sharding.meshes import Locals


def locals_of(params: Sequence[Tensor]) -> Locals | None:
    """What tells the local parts of parameters, if there are DTensors among them."""
    if not any_on_mesh(params):
        return None
    from thalweg.distribute.sharding.meshes import Locals

    return Locals()


def sharing_of(parts: Locals) -> Sharing:
    """How a step over local parts is shared."""
    from thalweg.distribute.sharding.meshes import LocalStep

    return LocalStep(parts)


def placed(pairs: list[tuple[object, Tensor]]) -> list[tuple[Any, Tensor]]:
    """The pairs with gradients cut as their parameters are; all ranks call this."""
    from thalweg.distribute.sharding import meshes

    return meshes.place_on_mesh(pairs)


def entry_of(name: str, own: Tensor) -> Entry:
    """A tensor that a state sets; of a DTensor this rank's part, given the whole or a DTensor."""
    parts = locals_of([own])
    if parts is None:
        return Entry(name, own)
    return Part(name, parts.part(own), var=own, parts=parts)

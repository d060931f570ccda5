"""Parameters that torch has shared out itself, such as those of `fully_shard`.

Their state is shared out as they are, and each rank updates what lies in its memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from thalweg.core.meshes import any_on_mesh, is_on_mesh
from thalweg.core.state import Entry, Part
from thalweg.formula import Rule

if TYPE_CHECKING:
    from thalweg.distribute.sharding.meshes import Locals, LocalStep


def locals_of(params: Sequence[Tensor]) -> Locals | None:
    """What tells the local parts of parameters, if there are DTensors among them."""
    if not any_on_mesh(params):
        return None
    from thalweg.distribute.sharding.meshes import Locals

    return Locals()


def sharing_of(parts: Locals, params: Sequence[Tensor], rule: Rule) -> LocalStep:
    """How a step over local parts is shared."""
    from thalweg.distribute.sharding.meshes import LocalStep
    from thalweg.distribute.sharding.team import Team

    first = next(filter(is_on_mesh, params), None) if rule.passes else None
    return LocalStep(parts, None if first is None else Team(first))


@contextmanager
def told_to_all(sharings: Sequence[Any]) -> Iterator[None]:
    """The block in which a step is taken, whose errors ranks tell each other that share matrices.

    Args:
        sharings: For each rule how its part of the step is shared; None for not at all.
    """
    shared: list[LocalStep] = [each for each in sharings if each is not None]
    team = next((each.team for each in shared if each.team is not None), None)
    if team is None:
        yield
        return
    for each in shared:
        each.team = team
    with team.report_errors():
        yield


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

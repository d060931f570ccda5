"""Owners of matrices: the ranks that run the stages over matrices of which several have parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Size, Tensor, distributed

from thalweg._core.dtensor import is_on_mesh
from thalweg._engines.matrix_shapes import matrix_shape
from thalweg.distribute.sharding.matrix_group import cut_dims
from thalweg.distribute.sharding.shard_index import (
    ShardedTensor,
    ShardIndex,
    Team,
    full_index,
    sharded_tensor,
    teams,
)


class Matrix(NamedTuple):
    """Matrix and the ranks that have its parts.

    Attributes:
        shape: The shape of the full variable.
        tensor: The placements; None for a variable that is not a DTensor.
        team: The mesh coordinates of the ranks with parts, by rank.
        owner: The rank that runs the stages.
    """

    shape: Size
    tensor: ShardedTensor | None
    team: Team
    owner: int

    @property
    def is_local(self) -> bool:
        """True if a rank has all elements."""
        return len(self.team) == 1

    @property
    def parts(self) -> dict[int, ShardIndex]:
        """The place of each rank's part of the variable, and of intermediates of its shape."""
        return self._places(self.tensor, self.shape)

    def slot_parts(self, shape: tuple[int, ...]) -> dict[int, ShardIndex]:
        """Return the place of each rank's part of a slot with a shape of its own."""
        return self._places(self.tensor and self.tensor.slot(shape), shape)

    def _places(
        self, tensor: ShardedTensor | None, shape: tuple[int, ...]
    ) -> dict[int, ShardIndex]:
        if tensor is None:
            return dict.fromkeys(self.team, full_index(shape))
        return {rank: tensor.shard(position) for rank, position in self.team.items()}


def matrices_of(variables: Sequence[Tensor], ranks: Sequence[int]) -> tuple[int, list[Matrix]]:
    """Return the index of this rank among `ranks`, and each variable with its ranks and owner.

    Args:
        variables: The variables; those that are not DTensors are complete on this rank.
        ranks: The numbers of the ranks in the default group. Teams and owners are indices of these.
    """
    number_of = {rank: number for number, rank in enumerate(ranks)}
    rank = number_of[distributed.get_rank()]
    matrices: list[Matrix] = []
    rows: list[tuple[int, Team]] = []
    for index, var in enumerate(variables):
        if not is_on_mesh(var):
            matrices.append(Matrix(var.shape, None, {rank: ()}, rank))
            continue
        all_teams = teams(var.device_mesh, tuple(cut_dims(var)))  # pyright: ignore
        for team in all_teams:
            if team.keys() & number_of.keys():
                rows.append((index, {number_of[k]: position for k, position in team.items()}))
        matrices.append(Matrix(var.shape, sharded_tensor(var), {}, rank))
    shapes = [variables[index].shape for index, _ in rows]
    owners = spread(shapes, [[*team] for _, team in rows])
    for (index, team), owner in zip(rows, owners, strict=True):
        if rank in team:
            matrices[index] = matrices[index]._replace(team=team, owner=owner)
    return rank, matrices


def spread(shapes: Sequence[Size], ranks: Sequence[Sequence[int]]) -> list[int]:
    """Return the owner rank of each matrix; large ones go first, to the least loaded rank."""
    loads: dict[int, int] = {}
    owners = [matrix_ranks[0] for matrix_ranks in ranks]
    sides = [matrix_shape(shape) for shape in shapes]
    work = [rows * columns * min(rows, columns) for rows, columns in sides]
    # Matrices without a choice load their ranks before others are spread.
    order = sorted(range(len(shapes)), key=lambda matrix: (len(ranks[matrix]) > 1, -work[matrix]))
    for index in order:
        owner = min(ranks[index], key=lambda rank: loads.get(rank, 0))
        loads[owner] = loads.get(owner, 0) + work[index]
        owners[index] = owner
    return owners

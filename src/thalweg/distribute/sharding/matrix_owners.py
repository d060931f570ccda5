"""Owners of matrices: ranks that run stages (functions over full matrices) of sharded matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

from torch import Size, Tensor, distributed

from thalweg._base.matrix_layout import MatrixLayout
from thalweg._core.dtensor import is_on_mesh
from thalweg._engines.matrix_batches import draws
from thalweg.distribute.sharding.matrix_group import cut_dims
from thalweg.distribute.sharding.shard_index import (
    ShardedTensor,
    ShardIndex,
    Team,
    full_index,
    sharded_tensor,
    teams,
)
from thalweg.formula import Rule


class Part(NamedTuple):
    """Part of a `Stack` on one rank.

    Attributes:
        index: The indices of the part's elements in the stack.
        first: The first row of the part in the local tensor of the variable or slot.
    """

    index: ShardIndex  # pyright: ignore[reportIncompatibleMethodOverride]
    first: int

    def view(self, local: Tensor) -> Tensor:
        """Return the part as a view of `local`, the local tensor of the variable or slot."""
        shape = self.index.shape
        return local.narrow(0, self.first, shape[0]) if shape else local


class Stack(NamedTuple):
    """Consecutive matrices of one variable, all with the same owner.

    Attributes:
        variable: The index of the variable in the step.
        full_shape: The shape of the full variable.
        rows: (first row, row after the last) of the stack in the full variable.
        tensor: The placements; None for a variable that is not a DTensor.
        team: {rank: mesh coordinates} of ranks that together have one copy of the variable.
        owner: The rank that runs the stages.
    """

    variable: int
    full_shape: Size
    rows: tuple[int, int]
    tensor: ShardedTensor | None
    team: Team
    owner: int

    @property
    def shape(self) -> Size:
        """The shape of the stack."""
        return Size((self.rows[1] - self.rows[0], *self.full_shape[1:]))

    def parts(self) -> dict[int, Part]:
        """Return {rank: part of the variable in this stack}, without empty parts."""
        return self._parts_of(self.tensor, self.full_shape)

    def slot_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the stack within a slot of full shape `shape`."""
        first, stop = self._rows_of(shape)
        return (stop - first, *shape[1:]) if shape else ()

    def slot_parts(self, shape: tuple[int, ...]) -> dict[int, Part]:
        """Return the parts of a slot of full shape `shape` by rank."""
        return self._parts_of(self.tensor and self.tensor.slot(shape), shape)

    def _rows_of(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return (first row, row after the last) of the stack in a full tensor of `shape`."""
        if not shape:
            return 0, 1
        first, stop = (row * shape[0] // self.full_shape[0] for row in self.rows)
        return first, stop

    def _parts_of(self, tensor: ShardedTensor | None, shape: tuple[int, ...]) -> dict[int, Part]:
        """Return {rank: part of a sharded tensor in this stack}, without empty parts.

        `shape` is the tensor's full shape. If `tensor` is None, each rank has the full tensor.
        """
        shards: dict[int, Part] = {}
        for rank, position in self.team.items():
            shard = full_index(shape) if tensor is None else tensor.shard(position)
            piece = Part(*shard.rows(*self._rows_of(shape))) if shape else Part(shard, 0)
            if prod(piece.index.shape):
                shards[rank] = piece
        return shards


def stacks_of(
    variables: Sequence[Tensor], rule: Rule, ranks: Sequence[int]
) -> tuple[int, list[Stack]]:
    """Divide the matrices of a step into stacks, and assign each stack to a rank.

    Args:
        variables: The variables. A variable without elements has no stack.
        rule: The rule, whose layout describes the matrices of each variable. If the rule draws
            random numbers, each variable is one stack.
        ranks: The numbers of the ranks in the default group. Ranks in a `Stack` are indices into
            this list.

    Returns:
        (index of this rank in `ranks`, stacks in the order of variables). Stacks without a part on
        this rank are left out.
    """
    layout, can_divide = rule.layout, bool(rule.layout.batch) and not draws(rule)
    index_by_rank = {rank: local_rank for local_rank, rank in enumerate(ranks)}
    this_rank = index_by_rank[distributed.get_rank()]
    complete: list[Stack] = []
    stacks: list[Stack] = []
    for index, var in enumerate(variables):
        rows = (0, len(var))
        if not var.numel():
            continue
        if not is_on_mesh(var):
            complete.append(Stack(index, var.shape, rows, None, {this_rank: ()}, this_rank))
            continue
        for team in teams(var.device_mesh, tuple(cut_dims(var))):  # pyright: ignore
            if team.keys() & index_by_rank.keys():
                numbered = {index_by_rank[rank]: position for rank, position in team.items()}
                stack = Stack(index, var.shape, rows, sharded_tensor(var), numbered, this_rank)
                stacks += _divide(stack) if can_divide else [stack]
    assigned = assign_owners(
        [_work_of(stack, layout) for stack in stacks], [[*stack.parts()] for stack in stacks]
    )
    owned = (stack._replace(owner=owner) for stack, owner in zip(stacks, assigned, strict=True))
    stacks = [*complete, *(stack for stack in owned if this_rank in stack.team)]
    return this_rank, sorted(stacks, key=lambda stack: stack.variable)


def _divide(stack: Stack) -> Iterator[Stack]:
    """Divide a stack into smaller stacks, which several ranks can own.

    A stack ends where the next row is on different ranks. Rows that n ranks share are divided into
    at most n equal stacks.
    """
    shards = [stack.tensor.shard(position).runs[0] for position in stack.team.values()]  # pyright: ignore
    ends = sorted({end for runs in shards for run in runs for end in run})
    for first, stop in pairwise(ends):
        size = -(-(stop - first) // len(stack._replace(rows=(first, stop)).parts()))
        for start in range(first, stop, size):
            yield stack._replace(rows=(start, min(start + size, stop)))


def _work_of(stack: Stack, layout: MatrixLayout) -> int:
    """Return the relative cost of a stage over the matrices of a stack, without unit."""
    shapes = [block.shape for block in layout.blocks(stack.shape)]
    work = sum(rows * columns * min(rows, columns) for rows, columns in shapes)
    return layout.matrix_sizes(stack.shape)[0] * work


def assign_owners(work: Sequence[int], ranks: Sequence[Sequence[int]]) -> list[int]:
    """Return the owner of each matrix: the least loaded rank that has a part of the matrix.

    Matrices on a single rank are assigned first, then matrices in descending order of cost.

    Args:
        work: The cost of each matrix.
        ranks: For each matrix, the ranks that have a part.
    """
    loads: dict[int, int] = {}
    assigned = [0] * len(work)
    # Matrices without a choice load their ranks before others are spread.
    for index in sorted(range(len(work)), key=lambda k: (len(ranks[k]) > 1, -work[k])):
        owner = min(ranks[index], key=lambda rank: loads.get(rank, 0))
        loads[owner] = loads.get(owner, 0) + work[index]
        assigned[index] = owner
    return assigned

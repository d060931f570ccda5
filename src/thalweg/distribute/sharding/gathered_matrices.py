"""Matrices of which ranks have parts: a stage sees each as a whole, on the rank that owns it.

What the stage reads is sent to the owner, which computes, and what has become of it is sent back.
Nobody keeps a whole: slots with a shape of their own are cut along their first dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.rule_passes import Stage
from thalweg._core.dtensor import is_on_mesh
from thalweg._engines.matrix_batches import (
    Batch,
    asked_by,
    counts_of,
    is_due,
    memory_beside,
    run_stage,
)
from thalweg._engines.matrix_shapes import matrix_shape, shaped_like
from thalweg._engines.protocol import Columns, StepRequest
from thalweg._engines.staged_step import Moved
from thalweg.distribute.sharding.gather_scatter import GatheredTensor, gather, part_shape, scatter
from thalweg.distribute.sharding.matrix_group import MatrixProcessGroup, axis_of


class GatheredMatrices:
    """The matrices of a step over parts of variables; see `thalweg._engines.staged_step.Matrices`.

    Args:
        team: The ranks.
        variables: The variables, of which some are DTensors; all others lie here as a whole.
        asked: The step over the parts.
    """

    def __init__(
        self, team: MatrixProcessGroup, variables: Sequence[Tensor], asked: StepRequest
    ) -> None:
        rank, size = team.ranks.rank, team.ranks.size
        self._team, self._rule, self._titles = team, asked.rule, asked.titles
        self._kinds = [slot.name for slot in asked.rule.shaped_slots]
        axes = [axis_of(var) if is_on_mesh(var) else None for var in variables]
        self._dims = [None if axis is None else axis.cut for axis in axes]
        self._ranks = [range(rank, rank + 1) if axis is None else range(size) for axis in axes]
        self._device = next(var.device for var in variables if is_on_mesh(var))
        self._shapes = [var.shape for var in variables]
        self._owners = spread(self._shapes, self._ranks)
        self._wholes = [
            {slot.name: tuple(shaped_like(var, slot).shape) for slot in asked.rule.shaped_slots}
            for var in variables
        ]
        self.slot_shapes = [
            [part_shape(shape, rank, ranks) for shape in own.values()]
            for own, ranks in zip(self._wholes, self._ranks, strict=True)
        ]
        self.made = [{n: memory_beside(var) for n in asked.rule.made} for var in asked.variables]
        mine: dict[Any, list[int]] = {}
        for index, (var, owner) in enumerate(zip(variables, self._owners, strict=True)):
            if owner == rank and var.numel():
                mine.setdefault((var.shape, var.dtype, var.device), []).append(index)
        self._batches = [
            Batch(asked.rule, asked.variables, own, shape) for (shape, *_), own in mine.items()
        ]
        self._rows = {index: (batch, row) for batch in self._batches
                      for row, index in enumerate(batch.members)}  # fmt: skip

    def run_stage(
        self, stage: Stage, columns: Columns, slots: Sequence[Sequence[Tensor]], moved: Moved
    ) -> None:
        """See `Matrices`. All ranks call this; if the stage fails on one, all refuse the step."""
        members = [index for index, shape in enumerate(self._shapes) if shape.numel()]
        if stage.every > 1:
            counts = counts_of(columns, members)
            pairs = zip(members, counts, strict=True)
            members = [index for index, count in pairs if is_due(count, stage.every)]
        if not members:
            return
        asked = {name for several in asked_by(stage) for name in several}
        names = [name for name in (*self._rule.made, *self._kinds) if name in asked]
        shares: dict[tuple[str, int], GatheredTensor] = moved.beside
        # What an earlier stage was given, and has made of it, is there still.
        new = {
            (name, index): self._share(name, index, slots)
            for name in names
            for index in members
            if (name, index) not in shares
        }
        self._team.meet(self._rule.name, [(self._titles[k], self._shapes[k]) for k in members])
        gather(self._team.ranks, [*new.values()], self._device)
        shares |= new
        is_returned = torch.zeros(len(names), dtype=torch.int64, device=self._team.ranks.device)

        def slot_of(index: int, place: int) -> Tensor:
            return shares[self._kinds[place], index].whole

        for batch in self._batches:
            found = run_stage(self._rule, stage, batch, columns, slot_of)
            for name, own in found.items():
                is_returned[names.index(name)] = 1
                for index, value in own:
                    shares[name, index].whole.copy_(value)
        self._team.meet()
        self._team.ranks.take_maximum(is_returned)
        returned = [name for name, flag in zip(names, is_returned.tolist(), strict=True) if flag]
        back: list[GatheredTensor] = []
        for name in returned:
            for index in members:
                share = shares[name, index]
                if name in self._kinds:
                    share = share._replace(local=torch.empty_like(share.local))
                    slot = slots[index][self._kinds.index(name)]
                    moved[id(slot)] = (slot.detach(), share.local)
                back.append(share)
        scatter(self._team.ranks, back, self._device)

    def _share(self, name: str, index: int, slots: Sequence[Sequence[Tensor]]) -> GatheredTensor:
        owner, ranks, whole = self._owners[index], self._ranks[index], None
        is_mine = owner == self._team.ranks.rank
        if name not in self._kinds:
            if is_mine:
                batch, row = self._rows[index]
                whole = batch.made[name][row]
            return GatheredTensor(owner, ranks, self._dims[index], self.made[index][name], whole)
        local = slots[index][self._kinds.index(name)].detach()
        shape = self._wholes[index][name]
        if is_mine:
            whole = local.new_empty(shape)
        return GatheredTensor(owner, ranks, 0 if shape else None, local, whole)


def spread(shapes: Sequence[torch.Size], ranks: Sequence[range]) -> list[int]:
    """Return the rank that owns each matrix: large ones first, each where there is least to do."""
    loads: dict[int, int] = {}
    owners = [own[0] for own in ranks]
    sides = [matrix_shape(shape) for shape in shapes]
    work = [rows * columns * min(rows, columns) for rows, columns in sides]
    for index in sorted(range(len(shapes)), key=lambda k: -work[k]):
        if len(ranks[index]) > 1:
            owner = min(ranks[index], key=lambda rank: loads.get(rank, 0))
            loads[owner] = loads.get(owner, 0) + work[index]
            owners[index] = owner
    return owners

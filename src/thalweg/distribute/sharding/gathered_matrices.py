"""Matrix stages over sharded matrices: each runs on the rank that owns the full matrix.

The inputs of a stage are sent to the owner, which computes, and the outputs are sent back. Full
matrices are not stored: slots with a shape of their own are cut along their first dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.rule_passes import Stage
from thalweg._core.dtensor import is_on_mesh
from thalweg._engines.matrix_batches import (
    Batch,
    counts_of,
    empty_like_elements,
    is_due,
    run_stage,
    stage_inputs,
)
from thalweg._engines.matrix_shapes import matrix_shape, shaped_like
from thalweg._engines.protocol import Columns, StepRequest
from thalweg._engines.staged_step import SlotUpdates
from thalweg.distribute.sharding.gather_scatter import GatheredTensor, gather, part_shape, scatter
from thalweg.distribute.sharding.matrix_group import MatrixProcessGroup, axis_of


class GatheredMatrices:
    """Matrices of a step over parts; see `thalweg._engines.staged_step.Matrices`.

    Args:
        group: The ranks.
        variables: The variables; those that are not DTensors are complete on this rank.
        request: The step over the parts.
    """

    def __init__(
        self, group: MatrixProcessGroup, variables: Sequence[Tensor], request: StepRequest
    ) -> None:
        rank, size = group.ranks.rank, group.ranks.size
        self._group, self._rule, self._titles = group, request.rule, request.titles
        self._kinds = [slot.name for slot in request.rule.shaped_slots]
        axes = [axis_of(var) if is_on_mesh(var) else None for var in variables]
        self._dims = [None if axis is None else axis.cut for axis in axes]
        self._ranks = [range(rank, rank + 1) if axis is None else range(size) for axis in axes]
        self._device = next(var.device for var in variables if is_on_mesh(var))
        self._shapes = [var.shape for var in variables]
        self._owners = spread(self._shapes, self._ranks)
        self._full_shapes = [
            {slot.name: tuple(shaped_like(var, slot).shape) for slot in request.rule.shaped_slots}
            for var in variables
        ]
        self.slot_shapes = [
            [part_shape(shape, rank, ranks) for shape in slot_shapes.values()]
            for slot_shapes, ranks in zip(self._full_shapes, self._ranks, strict=True)
        ]
        self.made = [
            {n: empty_like_elements(var) for n in request.rule.made} for var in request.variables
        ]
        local_matrices: dict[Any, list[int]] = {}
        for index, (var, owner) in enumerate(zip(variables, self._owners, strict=True)):
            if owner == rank and var.numel():
                local_matrices.setdefault((var.shape, var.dtype, var.device), []).append(index)
        self._batches = [
            Batch(request.rule, request.variables, slot_shapes, shape)
            for (shape, *_), slot_shapes in local_matrices.items()
        ]
        self._rows = {index: (batch, row) for batch in self._batches
                      for row, index in enumerate(batch.members)}  # fmt: skip

    def run_stage(
        self,
        stage: Stage,
        columns: Columns,
        slots: Sequence[Sequence[Tensor]],
        updates: SlotUpdates,
    ) -> None:
        """See `Matrices`. All ranks call this; if the stage fails on one, all raise."""
        members = self._due_members(stage, columns)
        if not members:
            return
        slot_names = {name for used in stage_inputs(stage) for name in used}
        names = [name for name in (*self._rule.made, *self._kinds) if name in slot_names]
        self._gather_inputs(names, members, slots, updates.gathered_tensors)
        returned = self._compute_stage(stage, columns, names, updates.gathered_tensors)
        self._scatter_outputs(returned, members, slots, updates)

    def _due_members(self, stage: Stage, columns: Columns) -> list[int]:
        """Return the indices of the matrices with elements for which the stage is due."""
        members = [index for index, shape in enumerate(self._shapes) if shape.numel()]
        if stage.every > 1:
            counts = counts_of(columns, members)
            pairs = zip(members, counts, strict=True)
            members = [index for index, count in pairs if is_due(count, stage.every)]
        return members

    def _gather_inputs(
        self,
        names: Sequence[str],
        members: Sequence[int],
        slots: Sequence[Sequence[Tensor]],
        shares: dict[tuple[str, int], GatheredTensor],
    ) -> None:
        """Add inputs to `shares`, except those that an earlier stage has gathered or written."""
        added = {
            (name, index): self._share(name, index, slots)
            for name in names
            for index in members
            if (name, index) not in shares
        }
        self._group.meet(self._rule.name, [(self._titles[k], self._shapes[k]) for k in members])
        gather(self._group.ranks, [*added.values()], self._device)
        shares |= added

    def _compute_stage(
        self,
        stage: Stage,
        columns: Columns,
        names: Sequence[str],
        shares: Mapping[tuple[str, int], GatheredTensor],
    ) -> list[str]:
        """Run the stage on the matrices of this rank; return the names that a rank has written."""
        return_flags = torch.zeros(len(names), dtype=torch.int64, device=self._group.ranks.device)

        def slot_of(index: int, kind_index: int) -> Tensor:
            return shares[self._kinds[kind_index], index].whole

        for batch in self._batches:
            outputs = run_stage(self._rule, stage, batch, columns, slot_of)
            for name, matrices in outputs.items():
                return_flags[names.index(name)] = 1
                for index, matrix in matrices:
                    shares[name, index].whole.copy_(matrix)
        self._group.meet()
        self._group.ranks.take_maximum(return_flags)
        return [name for name, flag in zip(names, return_flags.tolist(), strict=True) if flag]

    def _scatter_outputs(
        self,
        returned: Sequence[str],
        members: Sequence[int],
        slots: Sequence[Sequence[Tensor]],
        updates: SlotUpdates,
    ) -> None:
        """Send parts of the written matrices to their ranks; add those of slots to `updates`."""
        returning: list[GatheredTensor] = []
        for name in returned:
            for index in members:
                share = updates.gathered_tensors[name, index]
                if name in self._kinds:
                    share = share._replace(local=torch.empty_like(share.local))
                    slot = slots[index][self._kinds.index(name)]
                    updates[id(slot)] = (slot.detach(), share.local)
                returning.append(share)
        scatter(self._group.ranks, returning, self._device)

    def _share(self, name: str, index: int, slots: Sequence[Sequence[Tensor]]) -> GatheredTensor:
        """Return the gathered tensor of a slot or an intermediate of one matrix."""
        owner, ranks, full = self._owners[index], self._ranks[index], None
        is_owner = owner == self._group.ranks.rank
        if name not in self._kinds:
            if is_owner:
                batch, row = self._rows[index]
                full = batch.pass_values[name][row]
            return GatheredTensor(owner, ranks, self._dims[index], self.made[index][name], full)
        local = slots[index][self._kinds.index(name)].detach()
        shape = self._full_shapes[index][name]
        if is_owner:
            full = local.new_empty(shape)
        return GatheredTensor(owner, ranks, 0 if shape else None, local, full)


def spread(shapes: Sequence[torch.Size], ranks: Sequence[range]) -> list[int]:
    """Return the owner rank of each matrix; large ones go first, to the least loaded rank."""
    loads: dict[int, int] = {}
    owners = [matrix_ranks[0] for matrix_ranks in ranks]
    sides = [matrix_shape(shape) for shape in shapes]
    work = [rows * columns * min(rows, columns) for rows, columns in sides]
    for index in sorted(range(len(shapes)), key=lambda matrix: -work[matrix]):
        if len(ranks[index]) > 1:
            owner = min(ranks[index], key=lambda rank: loads.get(rank, 0))
            loads[owner] = loads.get(owner, 0) + work[index]
            owners[index] = owner
    return owners

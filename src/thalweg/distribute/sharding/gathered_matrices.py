"""Matrix stages over sharded matrices: each runs on the rank that owns the full matrix.

The inputs of a stage are sent to the owner, which computes, and the outputs are sent back. Full
matrices are not stored: slots with a shape of their own are cut along their first dimension. A
matrix of which this rank has all elements is not sent.
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
    counts_of,
    empty_like_elements,
    is_due,
    run_stage,
    stage_inputs,
)
from thalweg._engines.matrix_shapes import shaped_like
from thalweg._engines.protocol import Columns, StepRequest
from thalweg._engines.staged_step import SlotUpdates
from thalweg.distribute.sharding.gather_scatter import GatheredTensor, gather, scatter
from thalweg.distribute.sharding.matrix_group import MatrixProcessGroup
from thalweg.distribute.sharding.matrix_owners import matrices_of


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
        self._group, self._rule, self._titles = group, request.rule, request.titles
        self._kinds = [slot.name for slot in request.rule.shaped_slots]
        self._device = next(var.device for var in variables if is_on_mesh(var))
        self._rank, self._matrices = matrices_of(variables, group.connected)
        self._full_shapes = [
            {slot.name: tuple(shaped_like(var, slot).shape) for slot in request.rule.shaped_slots}
            for var in variables
        ]
        self.slot_shapes = [
            [matrix.slot_parts(shape)[self._rank].shape for shape in slot_shapes.values()]
            for matrix, slot_shapes in zip(self._matrices, self._full_shapes, strict=True)
        ]
        groups: dict[Any, list[int]] = {}
        for index, (var, matrix) in enumerate(zip(variables, self._matrices, strict=True)):
            if matrix.owner == self._rank and var.numel():
                groups.setdefault((var.shape, var.dtype, var.device), []).append(index)
        self._batches = [
            Batch(request.rule, request.variables, members, shape)
            for (shape, *_), members in groups.items()
        ]
        self._rows = {index: (batch, row) for batch in self._batches
                      for row, index in enumerate(batch.members)}  # fmt: skip
        self.made = [
            {name: self._make_value(index, name, var) for name in request.rule.made}
            for index, var in enumerate(request.variables)
        ]

    def _make_value(self, index: int, name: str, var: Tensor) -> Tensor:
        """Return memory for the value that a pass makes for this rank's part of a matrix."""
        if self._matrices[index].is_local and var.numel() and var.is_contiguous():
            batch, row = self._rows[index]
            return batch.pass_values[name][row]
        return empty_like_elements(var)

    def run_stage(
        self,
        stage: Stage,
        columns: Columns,
        slots: Sequence[Sequence[Tensor]],
        updates: SlotUpdates,
    ) -> None:
        """See `Matrices`. All ranks call this; if the stage fails on one, all raise."""
        members = [index for index, matrix in enumerate(self._matrices) if matrix.shape.numel()]
        if stage.every > 1:
            counts = counts_of(columns, members)
            pairs = zip(members, counts, strict=True)
            members = [index for index, count in pairs if is_due(count, stage.every)]
        if not members:
            return
        slot_names = {name for used in stage_inputs(stage) for name in used}
        names = [name for name in (*self._rule.made, *self._kinds) if name in slot_names]
        shares: dict[tuple[str, int], GatheredTensor] = updates.gathered_tensors
        shapes = [(self._titles[index], self._matrices[index].shape) for index in members]
        self._group.meet(self._rule.name, shapes)
        ranks = self._group.ranks
        # Earlier stages of the step have gathered, and may have changed, the others.
        added = {
            (name, index): self._share(name, index, slots)
            for name in names
            for index in members
            if (name, index) not in shares
        }
        gather(ranks, [*added.values()], self._device)
        shares |= added
        return_flags = torch.zeros(len(names), dtype=torch.int64, device=ranks.device)

        def slot_of(index: int, kind_index: int) -> Tensor:
            return shares[self._kinds[kind_index], index].whole

        for batch in self._batches:
            outputs = run_stage(self._rule, stage, batch, columns, slot_of)
            for name, matrices in outputs.items():
                return_flags[names.index(name)] = 1
                for index, matrix in matrices:
                    share = shares[name, index]
                    whole = torch.empty_like(share.whole).copy_(matrix)
                    shares[name, index] = share._replace(whole=whole)
        self._group.meet()
        if not ranks.is_alone:
            ranks.take_maximum(return_flags)
        returned = [name for name, flag in zip(names, return_flags.tolist(), strict=True) if flag]
        returning: list[GatheredTensor] = []
        for name in returned:
            for index in members:
                share = shares[name, index]
                if name in self._kinds:
                    new = torch.empty_like(share.local) if share.parts else share.whole
                    share = share._replace(local=new)
                    slot = slots[index][self._kinds.index(name)]
                    updates[id(slot)] = (slot.detach(), share.local)
                returning.append(share)
        scatter(ranks, returning, self._device)

    def _share(self, name: str, index: int, slots: Sequence[Sequence[Tensor]]) -> GatheredTensor:
        """Return the gathered tensor of a slot or an intermediate of one matrix."""
        matrix, full = self._matrices[index], None
        if name not in self._kinds:
            local = self.made[index][name]
            if matrix.owner == self._rank:
                batch, row = self._rows[index]
                full = batch.pass_values[name][row]
            is_in_place = full is local
            return GatheredTensor(matrix.owner, {} if is_in_place else matrix.parts, local, full)
        local = slots[index][self._kinds.index(name)].detach()
        if matrix.is_local:
            return GatheredTensor(matrix.owner, {}, local, local)
        shape = self._full_shapes[index][name]
        if matrix.owner == self._rank:
            full = local.new_empty(shape)
        return GatheredTensor(matrix.owner, matrix.slot_parts(shape), local, full)

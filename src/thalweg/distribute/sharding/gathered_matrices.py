"""Stages (functions over full matrices) of sharded matrices, run by the owner of each matrix.

The inputs of a stage are sent to the owner, which computes, and the outputs are sent back. Full
matrices are not stored: shaped slots (slots that do not have the variable's shape) are cut along
their first dimension. A matrix of which this rank has all elements is not sent. Pass values are the
elements of matrices that elementwise formulas compute and stages read or replace.
"""

# torch does not annotate `Tensor.tolist`.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
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
from thalweg.distribute.sharding.matrix_owners import Part, Stack, stacks_of
from thalweg.distribute.sharding.shard_index import sharded_tensor


class GatheredMatrices:
    """Matrices of a step, divided over ranks; replaces `_engines.staged_step.WholeMatrices`.

    Args:
        group: The ranks.
        variables: The variables. Variables that are not DTensors are complete on this rank.
        request: The step's request over local parts.
    """

    def __init__(
        self, group: MatrixProcessGroup, variables: Sequence[Tensor], request: StepRequest
    ) -> None:
        self._group, self._rule, self._names = group, request.rule, request.titles
        self._kinds = [slot.name for slot in request.rule.shaped_slots]
        self._device = next(var.device for var in variables if is_on_mesh(var))
        self._full_shapes = [
            {slot.name: tuple(shaped_like(var, slot).shape) for slot in request.rule.shaped_slots}
            for var in variables
        ]
        self.slot_shapes = [
            [_local_shape(var, shape) for shape in slot_shapes.values()]
            for var, slot_shapes in zip(variables, self._full_shapes, strict=True)
        ]
        self._rank, self._stacks = stacks_of(variables, request.rule, group.connected)
        self._variables = np.array([stack.variable for stack in self._stacks], np.int64)
        self._shards = [self._locate_shards(stack) for stack in self._stacks]
        stack_variables = [request.variables[stack.variable] for stack in self._stacks]
        groups: dict[Any, list[int]] = {}
        for index, (var, stack) in enumerate(zip(stack_variables, self._stacks, strict=True)):
            if stack.owner == self._rank:
                groups.setdefault((stack.shape, var.dtype, var.device), []).append(index)
        self._batches = [
            Batch(request.rule, stack_variables, members, shape)
            for (shape, *_), members in groups.items()
        ]
        self._values = {
            (name, index): values[row] for batch in self._batches
            for name, values in batch.pass_values.items() for row, index in enumerate(batch.members)
        }  # fmt: skip
        self.made = [
            {name: empty_like_elements(var) for name in request.rule.made}
            for var in request.variables
        ]
        for (name, index), values in self._values.items():
            var = stack_variables[index]
            if values.shape == var.shape and var.is_contiguous():
                # The passes write to the memory of the stages.
                self.made[self._variables[index]][name] = values

    def _locate_shards(self, stack: Stack) -> dict[str, dict[int, Part]]:
        """Return {slot or pass value: {rank: part}} for a stack."""
        slot_shapes = self._full_shapes[stack.variable].items()
        shards = {name: stack.slot_parts(shape) for name, shape in slot_shapes}
        return shards | dict.fromkeys(self._rule.made, stack.parts())

    def run_stage(
        self,
        stage: Stage,
        columns: Columns,
        slots: Sequence[Sequence[Tensor]],
        updates: SlotUpdates,
    ) -> None:
        """Run a stage of the rule: gather inputs to the owners, compute there, scatter the outputs.

        All ranks must call this method. If the stage fails on one rank, all ranks raise. An output
        with the name of an array that an earlier kernel computed (`Pass.makes`) overwrites this
        array. An output with the name of a slot is added to `updates`.

        Args:
            stage: The stage; skipped for a matrix unless `is_due(step count, stage.every)`.
            columns: The scalars of the step.
            slots: For each variable its slots, except slots of shape (); unchanged.
            updates: Receives {id(slot): (slot, new value)}, and caches gathered tensors.
        """
        columns = self._columns_of_stacks(columns)
        selected = [*range(len(self._stacks))]
        if stage.every > 1:
            counts = zip(selected, counts_of(columns, selected), strict=True)
            selected = [index for index, count in counts if is_due(count, stage.every)]
        if not selected:
            return
        slot_names = {name for used in stage_inputs(stage) for name in used}
        names = [name for name in (*self._rule.made, *self._kinds) if name in slot_names]
        gathered_tensors: dict[tuple[str, int], GatheredTensor] = updates.gathered_tensors
        variables = dict.fromkeys(self._stacks[index].variable for index in selected)
        shapes = [(self._names[index], self._full_shapes[index]) for index in variables]
        self._group.meet(self._rule.name, shapes)
        # Earlier stages of the step have gathered, and may have changed, the others.
        new_tensors = {
            (name, index): self._gathered(name, index, slots)
            for name in names
            for index in selected
            if (name, index) not in gathered_tensors
        }
        gather(self._group.ranks, [*new_tensors.values()], self._device)
        gathered_tensors |= new_tensors
        returned = self._call_stage(stage, columns, names, gathered_tensors)
        new_slots = self._new_slots(returned, [*variables], slots, updates)
        tensors = [
            self._returned(name, index, gathered_tensors[name, index], new_slots)
            for name in returned
            for index in selected
        ]
        scatter(self._group.ranks, tensors, self._device)

    def _new_slots(
        self,
        returned: Sequence[str],
        variables: Sequence[int],
        slots: Sequence[Sequence[Tensor]],
        updates: SlotUpdates,
    ) -> dict[tuple[str, int], Tensor]:
        """Allocate this rank's parts of the new slots that are named in `returned`.

        Add the parts to `updates`. Return {(slot name, variable index): part} for the indices in
        `variables`.
        """
        new_slots: dict[tuple[str, int], Tensor] = {}
        for position, name in enumerate(self._kinds):
            for variable in variables if name in returned else ():
                slot = slots[variable][position]
                new_slots[name, variable] = torch.empty_like(slot.detach())
                updates[id(slot)] = slot.detach(), new_slots[name, variable]
        return new_slots

    def _columns_of_stacks(self, columns: Columns) -> Columns:
        """Return the step's scalars with one element per stack; `columns` has one per variable."""
        if np.array_equal(self._variables, range(len(self._names))):
            return columns
        by_variable = columns.by_variable.items()
        return columns._replace(
            by_variable={name: scalars[self._variables] for name, scalars in by_variable}
        )

    def _returned(
        self,
        name: str,
        index: int,
        tensor: GatheredTensor,
        new_slots: Mapping[tuple[str, int], Tensor],
    ) -> GatheredTensor:
        """Return the output `name` of a stage for stack `index`, ready for `scatter`.

        If the output is a slot, return a copy of `tensor` whose `local` is a view of this rank's
        part in `new_slots`. Otherwise return `tensor` itself.
        """
        new_slot = new_slots.get((name, self._stacks[index].variable))
        if new_slot is None:
            return tensor
        shard = self._shards[index][name].get(self._rank)
        return tensor._replace(local=None if shard is None else shard.view(new_slot))

    def _call_stage(
        self,
        stage: Stage,
        columns: Columns,
        names: Sequence[str],
        gathered_tensors: dict[tuple[str, int], GatheredTensor],
    ) -> list[str]:
        """Run a stage over the matrices of this rank; put the outputs into `gathered_tensors`.

        Return the names of outputs on any rank, in the order of `names`.
        """
        ranks = self._group.ranks
        flags = torch.zeros(len(names), dtype=torch.int64, device=ranks.device)

        def slot_of(index: int, kind_index: int) -> Tensor:
            return gathered_tensors[self._kinds[kind_index], index].full_tensor

        for batch in self._batches:
            outputs = run_stage(self._rule, stage, batch, columns, slot_of)
            for name, matrices in outputs.items():
                flags[names.index(name)] = 1
                for index, matrix in matrices:
                    tensor = gathered_tensors[name, index]
                    full_tensor = torch.empty_like(tensor.full_tensor).copy_(matrix)
                    gathered_tensors[name, index] = tensor._replace(full_tensor=full_tensor)
        self._group.meet()
        # A rank without matrices does not know which outputs the stage returns.
        if not ranks.is_alone:
            ranks.take_maximum(flags)
        are_returned = cast("list[int]", flags.tolist())
        return [name for name, flag in zip(names, are_returned, strict=True) if flag]

    def _gathered(self, name: str, index: int, slots: Sequence[Sequence[Tensor]]) -> GatheredTensor:
        """Return a `GatheredTensor` for the slot or pass value `name` of stack `index`.

        On the stack's owner, allocate `full_tensor`; `gather` fills it later.
        """
        stack, shards = self._stacks[index], self._shards[index][name]
        is_slot = name in self._kinds
        tensor = (
            slots[stack.variable][self._kinds.index(name)].detach()
            if is_slot
            else self.made[stack.variable][name]
        )
        local = shards[self._rank].view(tensor) if self._rank in shards else None
        full_tensor: Tensor | None = None
        if stack.owner == self._rank and is_slot:
            shape = stack.slot_shape(self._full_shapes[stack.variable][name])
            full_tensor = local if [*shards] == [self._rank] else tensor.new_empty(shape)
        elif stack.owner == self._rank:
            full_tensor = self._values[name, index]
            if local is not None and local.data_ptr() == full_tensor.data_ptr():
                local = full_tensor
        shard_indices = {rank: shard.index for rank, shard in shards.items()}
        return GatheredTensor(stack.owner, shard_indices, local, full_tensor)


def _local_shape(var: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of this rank's part of a slot of full shape `shape`."""
    if not is_on_mesh(var):
        return shape
    coordinate = cast("tuple[int, ...]", var.device_mesh.get_coordinate())  # pyright: ignore
    return sharded_tensor(var).slot(shape).shard(tuple(coordinate)).shape

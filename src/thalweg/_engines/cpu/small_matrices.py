"""Updates of variables with small matrices, in kernels that compute many matrices at once."""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Measure, Stage
from thalweg._engines import layout
from thalweg._engines.array_types import Float64
from thalweg._engines.cpu.codegen_small_matrices import (
    SmallMatrixKernel,
    SmallMatrixSweep,
    names_of_blocks,
    stream_of_pass,
)
from thalweg._engines.cpu.codegen_transpose import LANES, SIDE
from thalweg._engines.cpu.kernel_group import Group
from thalweg._engines.cpu.launch import Compiled
from thalweg._engines.cpu.reductions import scalar_rows
from thalweg._engines.cpu.work_table import Table, choose_chunk_size, cut_slices, dense_chunks
from thalweg._engines.matrix_batches import Batch, group_by_shape, run_stage
from thalweg._engines.pass_updates import group_passes
from thalweg._engines.protocol import Call, Columns, Reduction, StepRequest
from thalweg._engines.reduction_order import Tree
from thalweg._engines.row_column_reductions import view_of
from thalweg.formula import Formula, Rule


class SweepPlan(NamedTuple):
    """Passes of a rule, divided into sweeps: traversals of memory, in order.

    Attributes:
        sweeps: For each sweep before the update: its passes, and the stages that run after it.
            These stages read and change only measures over variables.
        update_passes: The passes in the sweep of the update.
    """

    sweeps: tuple[tuple[tuple[Measure | FusedStage, ...], tuple[Stage, ...]], ...]
    update_passes: tuple[Measure | FusedStage, ...]


@cache
def plan_sweeps(rule: Rule) -> SweepPlan | None:
    """Return the sweeps of a rule; None if it has `leading_passes` or `group_passes` returns None.

    A sweep, one traversal of memory, ends before a pass or stage that reads a reduction over a
    whole variable. Each later sweep repeats all earlier passes over rows and columns.
    """
    groups = group_passes(rule)
    if groups is None or rule.leading_passes:
        return None
    sweeps: list[tuple[tuple[Measure | FusedStage, ...], list[Stage]]] = []
    passes: list[Measure | FusedStage] = []
    for group in groups:
        if group.reads_numbers:
            passes = _end_sweep(sweeps, passes)
        passes += [*group.measures, *group.fused_stages]
        if group.stages:
            passes = _end_sweep(sweeps, passes)
            sweeps[-1][1].extend(group.stages)
    update_passes = _end_sweep(sweeps, passes)
    plan = ((sweep_passes, tuple(stages)) for sweep_passes, stages in sweeps)
    return SweepPlan(tuple(plan), tuple(update_passes))


def _end_sweep(sweeps: list[Any], passes: list[Measure | FusedStage]) -> list[Measure | FusedStage]:
    """Append `passes` to `sweeps` if one of them is a measure over variables.

    Return all passes over rows and columns, with which the next sweep begins.
    """
    line_passes = [
        entry for entry in passes if not isinstance(entry, Measure) or entry.over != "variable"
    ]
    if len(line_passes) < len(passes):
        sweeps.append((tuple(passes), []))
    return line_passes


def find_short(request: StepRequest, engines: Sequence[str]) -> list[bool]:
    """Return a bool for each variable: True if a `ShortGroup` can update it; [] if all are False.

    Args:
        request: A step of a rule with passes.
        engines: The engine of each variable; only "cpu" has this group.
    """
    has_copies = any(copy is not None for copy in request.copies or ())
    rule = request.rule
    if rule.before or rule.is_measured or rule.codecs or plan_sweeps(rule) is None:
        return []
    if has_copies or request.matrices or request.places:
        return []
    triples = zip(request.variables, request.gradients, request.slots, strict=True)
    is_short = [
        engine == "cpu" and _is_short(*tensors)
        for engine, tensors in zip(engines, triples, strict=True)
    ]
    return is_short if any(is_short) else []


def _is_short(var: Tensor, grad: Any, slots: Sequence[Tensor]) -> bool:
    """Return True if a variable has small matrices, contiguous memory and a dense gradient."""
    return (
        isinstance(grad, Tensor)
        and max(var.shape[-2:]) <= SIDE
        and var.numel() > 0
        and var.is_contiguous()
        and layout.is_aligned(var)
        and all(layout.same_strides(slot, var) for slot in slots)
    )


@cache
def _compile_kernel(sweep: SmallMatrixSweep) -> Compiled:
    return Compiled(SmallMatrixKernel(sweep).write(), np.float64)


class SmallSweep(NamedTuple):
    """Kernel of a sweep over small matrices, with its work table, whose chunks count matrices."""

    kernel: Compiled
    table: Table


class ShortGroup(Group):
    """`Group` of variables (members) with matrices of one small shape; kernels also run the passes.

    Attributes:
        plan: The sweeps of the rule.
        sweeps: For each sweep before the update its kernels, one for each storage type of slots.
        update_sweeps: The kernels of the update, one for each storage type of slots.
        blocks: (blocks of all members, numbers): measures over a block, and in the first block of a
            member its sizes. `names_of_blocks` has the names of the numbers.
        block_counts: The number of blocks of each member.
        is_direct: True if kernels read and write the slots themselves, and slots have one type.
    """

    def __init__(self, request: StepRequest, members: list[int]) -> None:
        streams = self._set_members(request, members)
        # The request has a rule without passes; its formula has the rule with passes.
        update: Any = request.rule.update
        rule: Rule = update.rule
        plan = plan_sweeps(rule)
        if plan is None:
            raise TypeError(f"rule {rule.name!r} is not for these kernels")
        self.rule, self.plan, self._stages = rule, plan, request.stages
        self._update, self._types = request.rule.update, streams.names
        self._views = [view_of(request.variables[index].shape) for index in members]
        width = stream_of_pass(rule, streams.names, len(rule.passes))
        base = np.zeros((len(members), width), np.int64)
        base[:, : len(streams.names)] = streams.base
        chunk = choose_chunk_size(sum(streams.sizes))
        chunks = dense_chunks(streams.sizes, chunk)
        self._row = np.zeros(len(members), np.int64)
        self.table = Table(base, chunks, cut_slices(chunks, chunk), self._row)
        self._batches: list[tuple[list[int], Batch]] = []  # for stages, with the rows of members
        for rows in group_by_shape(rule, [request.variables[index] for index in members]):
            batch = Batch(rule, request.variables, [members[row] for row in rows])
            batch.vectors.clear()  # kernels compute vectors themselves
            self._batches.append((rows, batch))
        self._numbers: dict[str, Float64] = {}
        self.block_counts = np.array([-(-view.matrices // LANES) for view in self._views], np.int64)
        self._tree = Tree(self.block_counts)
        self.sweeps: list[list[SmallSweep]] = []
        self.update_sweeps: list[SmallSweep] = []
        self._staged_slots: list[tuple[Tensor, Tensor]] = []  # slots that are written later

    def bind_slots(self, slots: Sequence[Sequence[Tensor]], are_separate: bool) -> None:
        """Compile kernels, and bind them to the slots of rows and columns of each member.

        Args:
            slots: The slots of each member, in the rule's order: aliases that only the caller has.
                The group keeps their memory.
            are_separate: True if no gradient shares memory with slots. If False, kernels write
                copies of all slots. If True, they write copies of slots that are not contiguous or
                aligned. `write_staged` copies back.
        """
        first = len(self._types)
        self._slots, self._staged_slots = slots, []
        kinds: dict[tuple[str, ...], list[int]] = {}
        for member, member_slots in enumerate(slots):
            for index, slot in enumerate(member_slots):
                # A slot must not change before all kernels have read a gradient in its memory.
                if not (are_separate and slot.is_contiguous() and layout.is_aligned(slot)):
                    self._staged_slots.append((slot.detach(), slot.detach().contiguous().clone()))
                    slot = self._staged_slots[-1][1]
                self.table.base[member, first + index] = slot.data_ptr()
            names = tuple(str(layout.STORAGE_NAMES[slot.dtype]) for slot in member_slots)
            kinds.setdefault(names, []).append(member)
        self.is_direct = not self._staged_slots and len(kinds) == 1
        self._make_blocks()
        self.sweeps = [
            [self._make_sweep(names, members, passes, None) for names, members in kinds.items()]
            for passes, _ in self.plan.sweeps
        ]
        self.update_sweeps = [
            self._make_sweep(names, members, self.plan.update_passes, self._update)
            for names, members in kinds.items()
        ]

    @property
    def update_launch(self) -> SmallSweep:
        """See `Group`; only if `is_direct` is True."""
        return self.update_sweeps[0]

    def _make_blocks(self) -> None:
        """Allocate `blocks`, and write the addresses of results of measures to the table."""
        names, counts = names_of_blocks(self.rule), self.block_counts
        firsts = np.cumsum(counts) - counts
        self.blocks = np.zeros((counts.sum(), len(names)))
        views = np.array(self._views, np.int64)
        self.blocks[firsts, -3:] = np.stack([views[:, 1], views[:, 2], views.prod(1)], 1)
        for place, rule_pass in enumerate(self.rule.passes):
            if isinstance(rule_pass, Measure) and rule_pass.over == "variable":
                column = self.blocks[:, names.index(rule_pass.makes)]
                addresses = column.ctypes.data + firsts * column.strides[0]
                self.table.base[:, stream_of_pass(self.rule, self._types, place)] = addresses

    def _make_sweep(
        self,
        lines: tuple[str, ...],
        members: Sequence[int],
        passes: tuple[Measure | FusedStage, ...],
        update: Formula | None,
    ) -> SmallSweep:
        """Return a kernel and its work table, for a sweep over members.

        Args:
            lines: The storage types of a member's row and column slots; all `members` agree.
            members: Indices in the group.
            update: The update, or None for a sweep that only measures.
        """
        _, rows, columns = self._views[0]
        kernel = _compile_kernel(
            SmallMatrixSweep(
                rule=self.rule,
                passes=passes,
                update=update,
                stages=self._stages,
                storage=self._types,
                lines=lines,
                compute=np.dtype(self.dtype).name,
                sides=(rows, columns),
                flush=self.flush,
            )
        )
        size = rows * columns
        counts = [self._views[member].matrices for member in members]
        chunk = max(1, choose_chunk_size(sum(counts) * size) // (size * LANES)) * LANES
        chunks = dense_chunks(counts, chunk)
        # The chunks refer to rows of the group's table, which has further members.
        chunks[:, 0] = np.array(members)[chunks[:, 0]]
        table = Table(self.table.base, chunks, cut_slices(chunks, chunk), self._row)
        # Chunks count matrices here; the number of threads depends on elements.
        table.elements *= size
        return SmallSweep(kernel, table)

    def run_passes(self, columns: Columns) -> None:
        """Run all sweeps before the update, and the stages that follow each sweep.

        Measures over variables are stored for `make_calls`. Copies of slots that `bind_slots` has
        made are refreshed first.
        """
        self._numbers = {}
        for _, batch in self._batches:
            batch.measured_values.clear()
        for slot, copy in self._staged_slots:
            copy.copy_(slot)
        for (passes, stages), sweeps in zip(self.plan.sweeps, self.sweeps, strict=True):
            for kernel, table in sweeps:
                scalars = self._scalars_for(kernel, columns)  # alive until the call is done
                kernel.bind_table(table, scalars, self.flush)()
            for measure in passes:
                if isinstance(measure, Measure) and measure.over == "variable":
                    number = names_of_blocks(self.rule).index(measure.makes)
                    # The addition makes -0 to +0, as in `combine_tiles`.
                    totals = self._tree.combine(self.blocks[:, number]) + 0.0
                    for rows, batch in self._batches:
                        column = torch.from_numpy(totals[rows]).view(-1, 1, 1, 1)
                        batch.set_values(measure.makes, column)
                    self._numbers[measure.makes] = np.empty(len(self.members))
            for rows, batch in self._batches:
                for stage in stages:
                    run_stage(self.rule, stage, batch, columns, _raise_no_slot)
                # Formulas read the numbers in the dtype of the arithmetic.
                for name, column in batch.measured_values.items():
                    self._numbers[name][rows] = column.reshape(-1).to(batch.kind).numpy()

    def _scalars_for(self, kernel: Compiled, columns: Columns) -> Float64:
        """Return scalars in one row, or a row per member; set the row index of each member."""
        rows = scalar_rows(kernel.scalars, self._select_scalars(kernel.scalars, columns))
        self._row[:] = self._rows if len(rows) > 1 else 0
        return np.ascontiguousarray(rows)

    def _select_scalars(self, names: Sequence[str], columns: Columns) -> dict[str, Any]:
        other_names = [name for name in names if name not in self._numbers]
        measured_scalars = {name: self._numbers[name] for name in names if name in self._numbers}
        return {**super()._select_scalars(other_names, columns), **measured_scalars}

    def _reduce_lines(self, reduction: Reduction, columns: Columns) -> list[list[Tensor]]:
        """Return no measures: the group stores them itself."""
        return [[] for _ in self.members]

    def make_calls(self, columns: Columns) -> list[Call]:
        # The calls run later; the attribute keeps their scalars alive.
        self._update_scalars = [
            self._scalars_for(sweep.kernel, columns) for sweep in self.update_sweeps
        ]
        return [
            kernel.bind_table(table, scalars, self.flush)
            for (kernel, table), scalars in zip(
                self.update_sweeps, self._update_scalars, strict=True
            )
        ]

    def write_staged(self) -> list[Call]:
        """Return calls that copy staged slots to the slots, to run after all kernels."""
        return [partial(slot.copy_, copy) for slot, copy in self._staged_slots]


def _raise_no_slot(member: int, index: int) -> Tensor:
    """Raise an error: stages over numbers of variables must not read slots."""
    raise RuntimeError("stages over numbers of variables see no slots")

"""Sums over rows and columns before the update of a rule, in replayed steps.

The *passes* of a rule are measures and stages. A measure is a sum or largest magnitude over each
row, column or variable; a stage is a function of measures. A *sweep* is a kernel that computes
measures in one reading of memory. The launches before an update are, in order: `AddressCopies`; a
kernel of `codegen_line_stage.py`; each sweep, followed by a kernel of that module for the stages;
and the programs that compute the scalars of each variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from torch import Tensor

from thalweg._base.rule_passes import Measure
from thalweg._core.replay_reductions import (
    AddressCopies,
    ReplayedReductions,
    VariableScalars,
    program_of,
)
from thalweg._core.scalar_tracing import Program
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.cpu.codegen_line_stage import SIZE_WORDS, LineStage, LineStageKernel
from thalweg._engines.cpu.launch import Compiled, is_serial, threads_for
from thalweg._engines.cpu.replay_records import ReplayArgument
from thalweg._engines.cpu.small_matrices import ShortGroup, SmallSweep
from thalweg._engines.fused_stage import SIZES
from thalweg._engines.layout import STORAGE_NAMES
from thalweg._engines.matrix_batches import stage_inputs
from thalweg._engines.pass_updates import PassGroup, group_passes
from thalweg._engines.protocol import Dtype, Stages
from thalweg.formula import Rule


def _trace_scalars(
    rule: Rule, groups: Sequence[PassGroup], dtype: Dtype, storage_dtype: Dtype
) -> Program:
    """Return a program for the numbers of a variable that formulas after `groups` read.

    A number is a sum over the variable, or what a stage has computed in its place. The program runs
    the stages (functions of sums) of `groups` over numbers, sizes and scalars of the step.

    Args:
        groups: The first groups of the rule's passes.
        dtype: The compute dtype of the variable, to which numbers are rounded.
        storage_dtype: The dtype in which the kernel reads scalars.

    Raises:
        TypeError: Native code cannot compute the scalars.
    """
    numbers = [name for group in groups for name in group.numbers]
    stages = [stage for group in groups for stage in group.stages]
    names = dict.fromkeys(name for stage in stages for name in stage_inputs(stage).required)
    # All numbers are in memory, also those that later groups measure.
    inputs_in_memory = (*_numbers_of(rule), *SIZES)
    single_inputs: dict[str, Dtype] = dict.fromkeys(inputs_in_memory, np.float64)

    def make(inputs: Mapping[str, Any], _: Any) -> dict[str, Any]:
        values = {**inputs}
        for stage in stages:
            values |= stage.call({name: values[name] for name in stage_inputs(stage).required})
        outputs = {name: values[name] for name in numbers}
        if dtype is np.float32:
            outputs = {name: x.tape.narrowed(x) for name, x in outputs.items()}
        return outputs

    scalars = [name for name in names if name not in single_inputs]
    return Program(np.float64, single_inputs, scalars, make, storage_dtype=storage_dtype)


def _numbers_of(rule: Rule) -> list[str]:
    """Return the names of measures over variables, in order."""
    return [name for group in group_passes(rule) or () for name in group.numbers]


class _SmallLaunch:
    """Kernel of a sweep over small matrices with its argument block, for `ReplayedReductions`.

    Args:
        sweep: The kernel, with its work table.
        launch: The update, a `Launch`, whose addresses the kernel shares.
    """

    def __init__(self, sweep: SmallSweep, launch: Any) -> None:
        self.kernel, self._table = sweep
        self.rows = np.zeros((len(launch.members), len(self.kernel.scalars)))
        self._numbers = np.arange(len(launch.members), dtype=np.int64)
        self._argument = ReplayArgument(self._table, launch.group.flush, launch.base)
        self._argument.use_rows(self.rows, self._numbers)
        self.address = self._argument.address

    @property
    def is_serial(self) -> bool:
        """Return True if the sweep is too small for several threads."""
        return is_serial(self._table.elements)

    def threads(self) -> int:
        """Return the number of threads for a call now."""
        return threads_for(len(self._table.bounds) - 1, self._table.elements)


def _replay_small(rule: Rule, launch: Any) -> ReplayedReductions:
    """Return the launches before the update for a kernel over small matrices.

    Kernels of stages are not included, because the update kernel runs these stages.

    Raises:
        TypeError: Slots are copied, or native code cannot compute the scalars.
    """
    group: ShortGroup = launch.group
    if not group.is_direct:
        raise TypeError("Small matrices have copied slots.")
    blocks, counts, dtype = group.blocks, group.block_counts, launch.dtype
    sums = blocks.ctypes.data, len(counts), counts.ctypes.data
    groups: list[PassGroup] = []
    launches: list[Any] = []
    for (sweep,), (passes, stages) in zip(group.sweeps, group.plan.sweeps, strict=True):
        small = _SmallLaunch(sweep, launch)
        if groups:
            program = _trace_scalars(rule, groups, dtype, np.float64)
            launches.append(VariableScalars((small.kernel.scalars, small.rows), program, sums))
        launches.append(small)
        measures = tuple(entry for entry in passes if isinstance(entry, Measure))
        groups.append(PassGroup(measures, stages=stages))
    if groups:
        program = _trace_scalars(rule, groups, dtype, np.float64)
        launches.append(VariableScalars(launch.row_target(), program, sums))
    return ReplayedReductions(launch, launches, "d", (blocks, counts))


class _StageLaunch:
    """Kernel of a `LineStage` with its argument block, for `ReplayedReductions`.

    Args:
        line_stage: The description of the kernel.
        memory: The memory of the variables.
        table: (variables, words) of the kernel.
    """

    is_serial = True

    def __init__(self, line_stage: LineStage, memory: _Memory, table: Int64) -> None:
        self.kernel = _kernel_of(line_stage)
        self.rows = np.zeros((len(table), len(self.kernel.scalars)))
        arrays = table, self.rows, memory.scratch
        # The block has only addresses, so the attribute keeps their memory alive.
        self._references = memory, *arrays
        words = [0, len(table), *(array.ctypes.data for array in arrays)]
        self._block = np.array(words, np.int64)
        self.address = self._block.ctypes.data


@lru_cache(256)
def _kernel_of(line_stage: LineStage) -> Compiled:
    return Compiled(LineStageKernel(line_stage).write(), np.float64)


class _Memory:
    """Results, sizes and addresses for passes over rows and columns.

    Args:
        rule: The rule, of which `group_passes` returns groups.
        group: The variables.
        slots: The `line_slots` of each variable.

    Attributes:
        sizes: As of `Lines`.
        numbers: For each variable its measures over variables and, without `per_variable`, sizes.
        sums: The addresses and the length of `numbers`, as for `VariableScalars`.
        slot_types: The result of `_find_slot_types`.
        scratch: Memory for a number of each row or column of a matrix.
    """

    def __init__(self, rule: Rule, group: Any, slots: Sequence[Sequence[Tensor]]) -> None:
        self.sizes: Int64 = group.lines.sizes
        self.slot_types = _find_slot_types(slots, group.dtype)
        matrices, rows, columns = self.sizes[:, :3].T
        size_columns = [rows, columns, matrices * rows * columns]
        self._names = _numbers_of(rule)
        numbers = [np.zeros(len(rows))] * len(self._names)
        has_sizes = rule.per_variable is None
        self.numbers = np.stack([*numbers, *size_columns[: len(SIZES) * has_sizes]], 1) * 1.0
        self._leaf_counts = np.ones(len(rows), np.int64)
        self.sums = self.numbers.ctypes.data, len(rows), self._leaf_counts.ctypes.data
        self.scratch = np.zeros(max(rows.max(), columns.max()))
        self._results: list[Float64] = []
        self._words: dict[str, Any] = dict(zip(SIZE_WORDS, self.sizes.T, strict=True))
        for measure in chain.from_iterable(x.measures for x in group_passes(rule) or ()):
            self._words[f"result_{measure.makes}"] = self._place_result(measure)
        vectors = zip(rule.vectors, group.lines.base_of((*rule.vectors,)).T, strict=False)
        self._words |= {f"vector_{name}": addresses for name, addresses in vectors}
        for k, slot in enumerate(rule.line_slots):
            self._words[f"slot_{slot.name}"] = [var_slots[k].data_ptr() for var_slots in slots]

    def _place_result(self, measure: Measure) -> Int64:
        """Return the addresses of the results of a measure; add memory for rows and columns."""
        matrices, rows, columns = self.sizes[:, :3].T
        if measure.over == "variable":
            column = self.numbers[:, self._names.index(measure.makes) :]
            return column.ctypes.data + column.strides[0] * np.arange(len(column))
        counts = matrices * (rows if measure.over == "row" else columns)
        self._results.append(np.zeros(int(counts.sum())))
        return self._results[-1].ctypes.data + 8 * (np.cumsum(counts) - counts)

    def table(self, line_stage: LineStage, sweep: Any) -> Int64:
        """Return the table that a kernel of stages reads: addresses and sizes of each variable.

        Args:
            line_stage: The description of the kernel; `line_stage.words` has the columns' names.
            sweep: The `Sweep`, a kernel of sums, that runs before; None for the first kernel.
        """
        tiles = range(len(line_stage.measures))
        words = self._words | {f"tiles{k}": sweep.tiles.targets[:, k] for k in tiles}
        columns = [words[name] for name in line_stage.words]
        return np.ascontiguousarray(np.array(columns, np.int64).T)


def _find_slot_types(slots: Sequence[Sequence[Tensor]], dtype: Dtype) -> tuple[str, ...]:
    """Return the storage types of slots with a number per row or column, equal for all variables.

    Raises:
        TypeError: A slot is not contiguous, is wider than `dtype`, or differs in type between
            variables.
    """
    types = {tuple(slot.dtype for slot in var_slots) for var_slots in slots}
    size = np.dtype(dtype).itemsize
    for slot in (slot for var_slots in slots for slot in var_slots):
        if slot.itemsize > size or slot.is_neg() or not slot.is_contiguous():
            raise TypeError("A slot of rows or columns has another layout or type.")
    if len(types) > 1:
        raise TypeError("Slots of rows or columns have several types.")
    return tuple(STORAGE_NAMES[slot_dtype] for slot_dtype in types.pop())


def replay_lines(
    rule: Rule,
    launch: Any,
    stages: Stages,
    scalar_slots: Sequence[Sequence[Tensor]],
    shaped_slots: Sequence[Sequence[Tensor]],
) -> ReplayedReductions:
    """Return the passes over rows and columns that run before an update, as kernel launches.

    Args:
        launch: The kernel of the update, a `Launch`.
        stages: The transforms of gradients before the measures.
        scalar_slots: For each variable its slots of shape (), in the rule's order.
        shaped_slots: For each variable its slots of the rule's `shaped_slots`.

    Raises:
        TypeError: Native code cannot run the passes. Or a slot of shape () has another dtype than
            the compute dtype, or belongs to two variables.
    """
    groups, group, dtype = group_passes(rule), launch.group, launch.dtype
    if groups is None:
        raise TypeError("Kernels cannot run all passes.")
    if isinstance(group, ShortGroup):
        return _replay_small(rule, launch)
    # Matrix stages of `leading_passes` have slots of other shapes.
    line_slots = shaped_slots if rule.line_slots else [()] * len(shaped_slots)
    memory = _Memory(rule, group, line_slots)
    launches = _launch_sweeps(rule, groups, launch, stages, memory)
    if rule.per_variable is not None:
        program, slot_names = program_of(rule, dtype), [slot.name for slot in rule.measured_slots]
        arguments = program, memory.sums, scalar_slots, slot_names
        launches.append(VariableScalars(launch.row_target(), *arguments))
    elif _numbers_of(rule):
        program = _trace_scalars(rule, groups, dtype, dtype)
        launches.append(VariableScalars(launch.row_target(), program, memory.sums))
    return ReplayedReductions(launch, launches, "d", memory)


def _launch_sweeps(
    rule: Rule, groups: Sequence[PassGroup], launch: Any, stages: Stages, memory: _Memory
) -> list[Any]:
    """Return the launches of sweeps, which are kernels of sums, in order.

    The second launch runs stages (functions of sums), as does a launch after each sweep. A program
    precedes a sweep that reads numbers of earlier sweeps.

    Args:
        rule, groups: The rule, and the result of `group_passes`.
        launch, stages: As for `replay_lines`.
    """
    sweeps = [launch.group.line_sweep(x.measures, stages, launch.base) for x in groups[1:]]
    # Kernels read the addresses of gradients from the second column of their tables.
    copies = AddressCopies(
        (cell, sweep.base[member:, 1:].ctypes.data)
        for sweep in sweeps
        for member, cell in enumerate(launch.cells())
    )
    readers = [launch.kernel, *(sweep.kernel for sweep in sweeps)]
    read_names = {name for kernel in readers for name in kernel.vectors}
    copied_slots = tuple(x.name for x in rule.line_slots if x.name in read_names)
    flush = launch.group.flush and bool(stages)
    common = memory.slot_types, np.dtype(launch.dtype).name, flush
    # Only the first kernel of stages copies slots.
    line_stage = LineStage(rule, (), groups[0].fused_stages, copied_slots, *common)
    first = _StageLaunch(line_stage, memory, memory.table(line_stage, None))
    launches: list[Any] = [copies, first]
    for k, (pass_group, sweep) in enumerate(zip(groups[1:], sweeps, strict=True), 1):
        if pass_group.reads_numbers:
            program = _trace_scalars(rule, groups[:k], launch.dtype, np.float64)
            target = sweep.kernel.scalars, sweep.rows
            launches.append(VariableScalars(target, program, memory.sums))
        line_stage = LineStage(rule, pass_group.measures, pass_group.fused_stages, (), *common)
        table = memory.table(line_stage, sweep)
        launches += [sweep, _StageLaunch(line_stage, memory, table)]
    return launches

"""Sums over rows and columns before the update of a rule, in replayed steps.

The *passes* of a rule are measures and stages. A measure is a sum or largest magnitude over each
row, column or variable; a stage is a function of measures. A *sweep* is a kernel that computes
measures in one reading of memory. The launches before an update are, in order: a kernel of
`codegen_line_stage.py` that copies the addresses of gradients; each sweep, followed by a kernel of
that module for the stages; and the programs that compute the scalars of each variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from torch import Tensor

from thalweg._base.rule_passes import Measure
from thalweg._core.replay_reductions import ReplayedReductions, VariableScalars, program_of
from thalweg._core.scalar_tracing import Program
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.cpu.codegen_line_stage import SIZE_WORDS, LineStage, LineStageKernel
from thalweg._engines.cpu.launch import Compiled, is_serial, threads_for
from thalweg._engines.cpu.replay_records import ReplayArgument
from thalweg._engines.cpu.small_matrices import ShortGroup, SmallSweep
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.fused_stage import SIZES
from thalweg._engines.layout import STORAGE_NAMES
from thalweg._engines.matrix_batches import RANDOM, stage_inputs
from thalweg._engines.pass_updates import PassGroup, group_passes
from thalweg._engines.protocol import Dtype, Stages
from thalweg.formula import Rule


def _sort_passes(rule: Rule) -> list[PassGroup]:
    """Return groups of a rule's passes: the measures of a kernel, and the stages that follow.

    The last group has `rule.measures`, if there are any.

    Raises:
        TypeError: Native code cannot run the passes. Stages must be fused, except for last stages
            that compute scalars of a variable. Only last stages may read a measure over a variable.
    """
    groups = [*(group_passes(rule) or ())]
    if not groups or any(group.stages for group in groups[:-1]):
        raise TypeError("A pass is neither over rows and columns nor a last stage of numbers.")
    for stage in groups[-1].stages:
        required, optional = stage_inputs(stage)
        if stage.every != 1 or optional or RANDOM in required:
            raise TypeError("A stage does not run at each step, or has inputs of its own.")
    if rule.measures:
        if groups[-1].stages or _numbers_of(groups):
            raise TypeError("Measures over variables are not read after all sweeps alone.")
        measures = (Measure(formula, makes=name) for name, formula in rule.measures.items())
        groups.append(PassGroup(tuple(measures)))
    measures = [measure for group in groups for measure in group.measures]
    scalars = {name for x in measures for name in trace_formula(x.function).scalars}
    is_ambiguous = len({measure.makes for measure in measures}) < len(measures)
    if is_ambiguous or not scalars.isdisjoint(_numbers_of(groups)):
        raise TypeError("Measures over variables are not read after all sweeps alone.")
    return groups


def _numbers_of(groups: Sequence[PassGroup]) -> list[str]:
    """Return the names of measures over variables, in order."""
    measures = [measure for group in groups for measure in group.measures]
    return [measure.makes for measure in measures if measure.over == "variable"]


def _trace_scalars(
    rule: Rule, groups: Sequence[PassGroup], dtype: Dtype, storage_dtype: Dtype
) -> Program:
    """Trace the function that computes a variable's scalars from measures, sizes and slots.

    The function is the rule's `per_variable`. Without `per_variable`, it consists of the last
    stages. Without last stages, the measures are the scalars.

    Args:
        groups: The result of `_sort_passes`.
        dtype: The compute dtype of the variable, to which scalars are rounded.
        storage_dtype: The dtype in which the kernel reads scalars.

    Raises:
        TypeError: Native code cannot compute the scalars.
    """
    if rule.per_variable is not None:
        return program_of(rule, dtype)
    numbers, stages = _numbers_of(groups), groups[-1].stages
    names = dict.fromkeys(name for stage in stages for name in stage_inputs(stage).required)
    single_inputs: dict[str, Dtype] = dict.fromkeys((*numbers, *SIZES), np.float64)

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


def _replay_small(rule: Rule, groups: Sequence[PassGroup], launch: Any) -> ReplayedReductions:
    """Return the reductions that run before an update of small matrices.

    Stages are not included, because the update kernel runs them.

    Raises:
        TypeError: Slots are copied, measures depend on measures, or native code cannot compute the
            scalars.
    """
    group: ShortGroup = launch.group
    if not group.is_direct or len(group.sweeps) > 1:
        raise TypeError("Small matrices have copied slots, or measures that depend on each other.")
    launches = [_SmallLaunch(sweep, launch) for sweeps in group.sweeps for sweep in sweeps]
    scalars: VariableScalars | None = None
    if launches:
        program = _trace_scalars(rule, groups, launch.dtype, np.float64)
        blocks, counts = group.blocks, group.block_counts
        sums = blocks.ctypes.data, len(counts), counts.ctypes.data
        scalars = VariableScalars(launch, program, sums, (), ())
        scalars.references = blocks, counts
    return ReplayedReductions(launch, launches, scalars, "d")


class _StageLaunch:
    """Kernel of a `LineStage` with its argument block, for `ReplayedReductions`.

    Args:
        line_stage: The description of the kernel.
        memory: The memory of the variables.
        table: (variables, words) of the kernel.
        pairs: Addresses from and to which the kernel copies words first.
    """

    is_serial = True

    def __init__(
        self,
        line_stage: LineStage,
        memory: _Memory,
        table: Int64,
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        self.kernel = _kernel_of(line_stage)
        self.rows = np.zeros((len(table), len(self.kernel.scalars)))
        pair_words = np.array(pairs, np.int64)
        arrays = table, self.rows, pair_words, memory.scratch
        # The block has only addresses, so the attribute keeps their memory alive.
        self._references = memory, *arrays
        table_address, *addresses = (array.ctypes.data for array in arrays)
        words = [0, len(table), table_address, addresses[0], len(pairs), *addresses[1:]]
        self._block = np.array(words, np.int64)
        self.address = self._block.ctypes.data


@lru_cache(256)
def _kernel_of(line_stage: LineStage) -> Compiled:
    return Compiled(LineStageKernel(line_stage).write(), np.float64)


class _Memory:
    """Results, sizes and addresses for passes over rows and columns.

    Args:
        rule, groups: The rule, and the result of `_sort_passes`.
        group: The variables.
        slots: The `shaped_slots` of each variable.

    Attributes:
        sizes: As of `Lines`.
        numbers: For each variable its measures over variables and, without `per_variable`, sizes.
        leaf_counts: The number of rows of `numbers` of each variable, 1.
        scratch: Memory for a number of each row or column of a matrix.
    """

    def __init__(
        self, rule: Rule, groups: Sequence[PassGroup], group: Any, slots: Sequence[Sequence[Tensor]]
    ) -> None:
        self.sizes: Int64 = group.lines.sizes
        matrices, rows, columns = self.sizes[:, :3].T
        size_columns = [rows, columns, matrices * rows * columns]
        self._names = _numbers_of(groups)
        numbers = [np.zeros(len(rows))] * len(self._names)
        has_sizes = rule.per_variable is None
        self.numbers = np.stack([*numbers, *size_columns[: len(SIZES) * has_sizes]], 1) * 1.0
        self.leaf_counts = np.ones(len(rows), np.int64)
        self.scratch = np.zeros(max(rows.max(), columns.max()))
        self._results: list[Float64] = []
        self._words: dict[str, Any] = dict(zip(SIZE_WORDS, self.sizes.T, strict=True))
        for measure in (measure for pass_group in groups for measure in pass_group.measures):
            self._words[f"result_{measure.makes}"] = self._place_result(measure)
        vectors = zip(rule.vectors, group.lines.base_of((*rule.vectors,)).T, strict=False)
        self._words |= {f"vector_{name}": addresses for name, addresses in vectors}
        for k, slot in enumerate(rule.shaped_slots):
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
        """Return a row of addresses and sizes for each variable, for a kernel after a sweep.

        Args:
            line_stage: The description of the kernel; `line_stage.words` has the columns' names.
            sweep: The `Sweep` that runs before the kernel; None for the first kernel.
        """
        tiles = range(len(line_stage.measures))
        words = self._words | {f"tiles{k}": sweep.tiles.targets[:, k] for k in tiles}
        columns = [words[name] for name in line_stage.words]
        return np.ascontiguousarray(np.array(columns, np.int64).T)


def _slot_types(slots: Sequence[Sequence[Tensor]], dtype: Dtype) -> tuple[str, ...]:
    """Return the storage types of a variable's slots with a number per row or column.

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
        shaped_slots: For each variable its slots with a number for each row or column.

    Raises:
        TypeError: Native code cannot run the passes. Or a slot of shape () has another dtype than
            the compute dtype, or belongs to two variables.
    """
    groups, group, dtype = _sort_passes(rule), launch.group, launch.dtype
    if isinstance(group, ShortGroup):
        return _replay_small(rule, groups, launch)
    memory = _Memory(rule, groups, group, shaped_slots)
    line_sweeps = [group.line_sweep(x.measures, stages, launch.base) for x in groups[1:]]
    # Kernels read the addresses of gradients from the second column of their tables.
    pairs = [
        (launch.base[member:, 1:].ctypes.data, sweep.base[member:, 1:].ctypes.data)
        for sweep in line_sweeps
        for member in range(len(memory.sizes))
    ]
    readers = [launch.kernel, *(sweep.kernel for sweep in line_sweeps)]
    read_names = {name for kernel in readers for name in kernel.vectors}
    copied_slots = tuple(x.name for x in rule.shaped_slots if x.name in read_names)
    common = _slot_types(shaped_slots, dtype), np.dtype(dtype).name, group.flush and bool(stages)
    launches: list[Any] = []
    for (measures, fused, _), sweep in zip(groups, [None, *line_sweeps], strict=True):
        line_stage = LineStage(rule, measures, fused, copied_slots, *common)
        table = memory.table(line_stage, sweep)
        launches += [] if sweep is None else [sweep]
        launches.append(_StageLaunch(line_stage, memory, table, pairs))
        # Only the first kernel copies addresses and slots.
        pairs, copied_slots = [], ()
    scalars: VariableScalars | None = None
    if memory.numbers.shape[1] > len(SIZES) or rule.per_variable is not None:
        counts = memory.leaf_counts
        sums = memory.numbers.ctypes.data, len(counts), counts.ctypes.data
        slot_names = [slot.name for slot in rule.measured_slots]
        program = _trace_scalars(rule, groups, dtype, dtype)
        scalars = VariableScalars(launch, program, sums, scalar_slots, slot_names)
    return ReplayedReductions(launch, launches, scalars, "d")

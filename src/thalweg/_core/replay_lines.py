"""Passes of a rule over rows and columns in a replayed step, as launches before its update.

For the variables of a kernel these launches are, in order: a kernel of `codegen_line_stage.py`
that copies the addresses of gradients; each sweep over rows, columns and variables with another
such kernel after it; and the programs that compute the scalars of each variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Measure, Stage
from thalweg._core.plan_cache import CachedPlan
from thalweg._core.replay_reductions import VariableScalars, columns_of, program_of
from thalweg._core.scalar_tracing import Program
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.cpu.codegen_line_stage import SIZE_WORDS, LineStage, LineStageKernel
from thalweg._engines.cpu.launch import Compiled
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.fused_stage import SIZES
from thalweg._engines.layout import STORAGE_NAMES
from thalweg._engines.matrix_batches import RANDOM, stage_inputs
from thalweg._engines.pass_updates import sweeps_of
from thalweg._engines.protocol import Dtype, Stages
from thalweg.formula import Rule


class LineWork(NamedTuple):
    """Passes of a rule over rows and columns.

    Attributes:
        sweeps: The measures of each sweep, with the fused stages after them; the first sweep has no
            measures.
        number_stage: The stage after all sweeps, over numbers of variables, or None.
    """

    sweeps: list[tuple[tuple[Measure, ...], tuple[FusedStage, ...]]]
    number_stage: Stage | None


@cache
def line_work_of(rule: Rule) -> LineWork | None:
    """Return the passes of a rule, or None if native code cannot run them."""
    if not rule.is_of_lines or rule.codecs or any(slot.per is None for slot in rule.shaped_slots):
        return None
    sweeps: list[tuple[tuple[Measure, ...], tuple[FusedStage, ...]]] = [((), ())]
    number_stage: Stage | None = None
    for entry in rule.passes:
        if number_stage is not None:
            return None
        if isinstance(entry, FusedStage):
            measures, stages = sweeps[-1]
            sweeps[-1] = measures, (*stages, entry)
        elif isinstance(entry, Measure):
            sweeps += [(sweeps_of(rule)[entry], ())] if entry in sweeps_of(rule) else []
        elif isinstance(entry, Stage) and _is_of_numbers(rule, entry):
            number_stage = entry
        else:
            return None
    if rule.measures:
        measures = (Measure(formula, makes=name) for name, formula in rule.measures.items())
        sweeps.append((tuple(measures), ()))
    work = LineWork(sweeps, number_stage)
    return work if _has_separate_numbers(rule, work) else None


def _is_of_numbers(rule: Rule, stage: Stage) -> bool:
    """Return True if a stage reads only scalars, sizes and measures over variables."""
    required, optional = stage_inputs(stage)
    is_each = stage.every == 1 and not stage.of_matrices
    return is_each and not optional and {*required}.isdisjoint((*rule.vectors, RANDOM))


def _has_separate_numbers(rule: Rule, work: LineWork) -> bool:
    """Return True if measures over variables are read after all sweeps, and either by the passes
    or by `per_variable`.
    """
    numbers = [x.makes for x in rule.passes if isinstance(x, Measure) and x.over == "variable"]
    measures = [measure for sweep, _ in work.sweeps for measure in sweep]
    scalars = {name for measure in measures for name in trace_formula(measure.function).scalars}
    names = [measure.makes for measure in measures]
    is_single_source = not (rule.measures and (numbers or work.number_stage))
    return is_single_source and scalars.isdisjoint(numbers) and len({*names}) == len(names)


class _StageLaunch:
    """Kernel of a `LineStage` with its argument block.

    Args:
        line_stage: The description of the kernel.
        table: (variables, words) of the kernel.
        pairs: (..., 2) addresses from and to which the kernel copies words first.
        scratch: Memory for a number of each row or column of a matrix.

    Attributes:
        rows: A row of scalars for each variable.
        address: The address of the block.
    """

    is_serial = True

    def __init__(
        self, line_stage: LineStage, table: Int64, pairs: Int64, scratch: Float64
    ) -> None:
        self.kernel = _kernel_of(line_stage)
        self.rows = np.zeros((len(table), len(self.kernel.scalars)))
        arrays = self._arrays = np.ascontiguousarray(table), self.rows, pairs, scratch
        table_address, *addresses = (array.ctypes.data for array in arrays)
        words = [0, len(table), table_address, addresses[0], len(pairs), *addresses[1:]]
        self._block = np.array(words, np.int64)
        self.address = self._block.ctypes.data


@cache
def _kernel_of(line_stage: LineStage) -> Compiled:
    return Compiled(LineStageKernel(line_stage).write(), np.float64)


class ReplayedLines:
    """Passes over rows and columns, and scalars computed from these, for the variables of a kernel.

    Args:
        cached_plan: The plan of a rule with `line_work_of`.
        launch: The kernel, a `Launch`.
        first: The position in the step of the first variable of the plan.
        stages: The transforms of gradients before the measures.

    Attributes:
        sweeps, record: As of `ReplayedReductions`.

    Raises:
        TypeError: Native code cannot run the passes, or as of `VariableScalars`.
    """

    def __init__(self, cached_plan: CachedPlan, launch: Any, first: int, stages: Stages) -> None:
        self._rule = rule = cached_plan.request.rule
        work = line_work_of(rule)
        if work is None:
            raise TypeError("Native code cannot run the passes of the rule.")
        self._places, _ = launch.use_member_rows()
        members = [member - first for member in launch.members]
        self._slots = [cached_plan.shaped_slots[member] for member in members if rule.shaped_slots]
        self._sizes = launch.group.lines.sizes
        program = self._trace(work, launch.dtype)
        self._allocate(work, [] if program is None else program.inputs)
        self.sweeps: list[Any] = []
        self._add_sweeps(work, launch, stages)
        self._tables = [
            (sweep, np.zeros((len(launch.places), len(sweep.kernel.scalars))))
            for sweep in self.sweeps
            if sweep.kernel.scalars
        ]
        self._scalars: VariableScalars | None = None
        if program is not None:
            names = [slot.name for slot in rule.measured_slots]
            slots = [cached_plan.scalar_slots[member] for member in members if names]
            sums = self._numbers.ctypes.data, len(members), self._counts.ctypes.data
            self._scalars = VariableScalars(launch, program, sums, slots, names)
        self.record = None if self._scalars is None else self._scalars.record

    def _trace(self, work: LineWork, dtype: Dtype) -> Program | None:
        """Return the program of the scalars of a variable, or None if no number depends on it."""
        if self._rule.per_variable is not None:
            return program_of(self._rule, dtype)
        passes = (entry for entry in self._rule.passes if isinstance(entry, Measure))
        numbers = [entry.makes for entry in passes if entry.over == "variable"]
        if not numbers:
            return None
        stage = work.number_stage
        names = () if stage is None else stage_inputs(stage).required
        single_inputs: dict[str, Dtype] = dict.fromkeys((*numbers, *SIZES), np.float64)

        def make(inputs: Mapping[str, Any], _: Any) -> dict[str, Any]:
            outputs = {name: inputs[name] for name in numbers}
            if stage is not None:
                outputs |= stage.call({name: inputs[name] for name in names})
            return outputs

        scalars = [name for name in names if name not in single_inputs]
        return Program(np.float64, single_inputs, scalars, make, storage_dtype=dtype)

    def _allocate(self, work: LineWork, inputs: Sequence[str]) -> None:
        """Allocate results of measures; find the addresses of these, of vectors and of slots.

        Args:
            work: The passes.
            inputs: The inputs of the program; the first are numbers of a variable.
        """
        matrices, rows, columns = self._sizes[:, :3].T
        measures = [measure for sweep, _ in work.sweeps for measure in sweep]
        numbers = [measure.makes for measure in measures if measure.over == "variable"]
        sizes = dict(zip(SIZES, (rows, columns, matrices * rows * columns), strict=True))
        # Programs read the numbers of a variable from one row.
        leading = [name for name in inputs if name in numbers or name in sizes]
        self._numbers = np.zeros((len(self._sizes), len(leading)))
        self._counts = np.ones(len(self._sizes), np.int64)
        self._memory: list[Float64] = []
        self._addresses: dict[str, Any] = {}
        for measure in measures:
            if measure.over == "variable":
                column = self._numbers[:, leading.index(measure.makes) :]
                addresses = column.ctypes.data + column.strides[0] * np.arange(len(column))
            else:
                counts = matrices * (rows if measure.over == "row" else columns)
                self._memory.append(np.zeros(counts.sum()))
                addresses = self._memory[-1].ctypes.data + 8 * (np.cumsum(counts) - counts)
            self._addresses[f"result_{measure.makes}"] = addresses
        for name in leading:
            if name in sizes and name not in numbers:
                self._numbers[:, leading.index(name)] = sizes[name]

    def _add_sweeps(self, work: LineWork, launch: Any, stages: Stages) -> None:
        """Make the launches of all sweeps, with those between."""
        group, rule = launch.group, self._rule
        vector_addresses = group.lines.base_of((*rule.vectors,))
        for k, name in enumerate(rule.vectors):
            self._addresses[f"vector_{name}"] = vector_addresses[:, k]
        for k, slot in enumerate(rule.shaped_slots):
            self._addresses[f"slot_{slot.name}"] = [slots[k].data_ptr() for slots in self._slots]
        line_sweeps = [
            group.line_sweep(measures, stages, launch.base) for measures, _ in work.sweeps[1:]
        ]
        # Kernels read the addresses of gradients from the second column of their tables.
        pairs = [
            (launch.base[member:, 1:].ctypes.data, sweep.base[member:, 1:].ctypes.data)
            for sweep in line_sweeps
            for member in range(len(self._sizes))
        ]
        scratch = np.zeros(self._sizes[:, 1:3].max())
        read_vectors = {x for sweep in line_sweeps for x in sweep.kernel.vectors}
        read_vectors |= {*launch.kernel.vectors}
        copied_slots = tuple(x.name for x in rule.shaped_slots if x.name in read_vectors)
        for (measures, fused), sweep in zip(work.sweeps, [None, *line_sweeps], strict=True):
            flush = group.flush and bool(stages)
            kinds = self._slot_kinds(launch.dtype)
            compute = np.dtype(launch.dtype).name
            line_stage = LineStage(rule, measures, fused, copied_slots, kinds, compute, flush)
            table = self._table(line_stage, sweep)
            word_pairs = np.array(pairs, np.int64).reshape(-1, 2)
            self.sweeps += [] if sweep is None else [sweep]
            self.sweeps.append(_StageLaunch(line_stage, table, word_pairs, scratch))
            pairs, copied_slots = [], ()

    def _table(self, line_stage: LineStage, sweep: Any) -> Int64:
        """Return the table of the kernel after a sweep, which is None before the first one."""
        columns = dict(zip(SIZE_WORDS, self._sizes.T, strict=True)) | self._addresses
        for number in range(len(line_stage.measures)):
            columns[f"tiles{number}"] = sweep.tiles.targets[:, number]
        return np.array([columns[name] for name in line_stage.words], np.int64).T

    def _slot_kinds(self, dtype: Dtype) -> tuple[str, ...]:
        """Return the storage types of the slots of rows and columns.

        Raises:
            TypeError: A slot is not contiguous, wider than the arithmetic, or not of one type.
        """
        kinds = {tuple(slot.dtype for slot in slots) for slots in self._slots}
        all_slots = [slot for slots in self._slots for slot in slots]
        are_plain = all(slot.is_contiguous() and not slot.is_neg() for slot in all_slots)
        widest = torch.float32 if dtype is np.float32 else torch.float64
        is_narrow = all(slot.itemsize <= widest.itemsize for slot in all_slots)
        if len(kinds) > 1 or not (are_plain and is_narrow):
            raise TypeError("A slot of rows or columns has another layout or type.")
        return tuple(STORAGE_NAMES[dtype] for dtype in next(iter(kinds), ()))

    def columns(self, name: str) -> list[tuple[int, int, int]]:
        """See `ReplayedReductions.columns`."""
        return columns_of(self.sweeps, name)

    def set_scalars(self, scalars: Sequence[Mapping[str, Any]]) -> None:
        """See `ReplayedReductions.set_scalars`."""
        if self._scalars is not None:
            self._scalars.set_scalars(scalars)
        for sweep, rows in self._tables:
            for index, values in enumerate(scalars):
                rows[index] = [values[name] for name in sweep.kernel.scalars]
            np.take(rows, self._places, 0, sweep.rows, "clip")

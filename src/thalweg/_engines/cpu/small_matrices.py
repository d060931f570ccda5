"""Variables whose matrices have few rows and columns, in kernels that take many side by side."""

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
from thalweg._engines.cpu import launch
from thalweg._engines.cpu.codegen_small_matrices import Short, stream_of_pass
from thalweg._engines.cpu.codegen_transpose import LANES, SIDE
from thalweg._engines.cpu.kernel_group import Group
from thalweg._engines.cpu.launch import Compiled
from thalweg._engines.cpu.reductions import scalar_rows
from thalweg._engines.cpu.work_table import Table, chunk_of, cut_slices, dense_chunks, make_table
from thalweg._engines.formula_parser import transcribe
from thalweg._engines.fused_stage import read_stage
from thalweg._engines.matrix_batches import Batch, alike, asked_by, run_stage
from thalweg._engines.protocol import Call, Columns, Stages, StepRequest
from thalweg._engines.reduction_order import Tree
from thalweg._engines.row_column_reductions import view_of
from thalweg.formula import Formula, Rule


class Work(NamedTuple):
    """What is done before an update, in order.

    Attributes:
        sweeps: For each sweep what it does of the passes, and the stages over numbers of variables
            that come after it.
        last: What the sweep of the update does of them.
    """

    sweeps: tuple[tuple[tuple[Measure | FusedStage, ...], tuple[Stage, ...]], ...]
    last: tuple[Measure | FusedStage, ...]


@cache
def work_of(rule: Rule) -> Work | None:
    """The work of a rule; None if one of its passes is not for these kernels.

    Each sweep makes anew what is of rows and columns, and measures of variables once.
    """
    if rule.before or rule.measures or rule.levels or rule.per_variable or rule.per_optimizer:
        return None
    if rule.codecs or not rule.is_of_lines or any(slot.per is None for slot in rule.shaped_slots):
        return None
    sweeps: list[tuple[tuple[Measure | FusedStage, ...], list[Stage]]] = []
    own: list[Measure | FusedStage] = []
    for each in rule.passes:
        if isinstance(each, Stage) and not isinstance(each, FusedStage):
            own = _end_sweep(sweeps, own)
            if not sweeps or not _is_of_variables(rule, each, own):
                return None
            sweeps[-1][1].append(each)
        elif isinstance(each, FusedStage):
            if "element_count" in read_stage(rule, each).scalars:
                return None
            own.append(each)
        elif isinstance(each, Measure) and (each.over != "variable" or each.reduce == "sum"):
            asked = transcribe(each.function).scalars
            if any(one.makes in asked for one in own if not _is_of_lines(one)):
                own = _end_sweep(sweeps, own)
            own.append(each)
        else:
            return None
    last = _end_sweep(sweeps, own)
    return Work(tuple((each, tuple(stages)) for each, stages in sweeps), tuple(last))


def _end_sweep(sweeps: list[Any], own: list[Measure | FusedStage]) -> list[Measure | FusedStage]:
    """Have what measures variables be a sweep; returns what the next one begins with."""
    of_lines = list(filter(_is_of_lines, own))
    if len(of_lines) < len(own):
        sweeps.append((tuple(own), []))
    return of_lines


def _is_of_lines(each: Measure | FusedStage) -> bool:
    """Whether it is no measure of variables."""
    return isinstance(each, FusedStage) or each.over != "variable"


def _is_of_variables(rule: Rule, stage: Stage, own: Sequence[Measure | FusedStage]) -> bool:
    """Whether a stage sees numbers of variables alone, none of which a measure among `own` reads.

    These are taken anew after it, when a number that it has changed is another one.
    """
    asked = {name for several in asked_by(stage) for name in several}
    numbers = asked & {each.makes for each in rule.passes if isinstance(each, Measure)}
    read = (transcribe(each.function).scalars for each in own if isinstance(each, Measure))
    return asked.isdisjoint(rule.vectors) and all(numbers.isdisjoint(names) for names in read)


def find_short(asked: StepRequest, homes: Sequence[str]) -> list[bool]:
    """For each variable of a step whether its matrices are taken side by side; nothing if none is.

    Args:
        asked: A step of a rule with passes.
        homes: The engines of variables whose memory is fit for them.
    """
    copied = any(copy is not None for copy in asked.copies or ())
    if copied or asked.matrices or asked.places or work_of(asked.rule) is None:
        return []
    triples = zip(asked.variables, asked.gradients, asked.slots, strict=True)
    found = [home == "cpu" and _is_short(*each) for home, each in zip(homes, triples, strict=True)]
    return found if any(found) else []


def _is_short(var: Tensor, grad: Any, slots: Sequence[Tensor]) -> bool:
    return (
        isinstance(grad, Tensor)
        and max(var.shape[-2:]) <= SIDE
        and var.numel() > 0
        and var.is_contiguous()
        and layout.is_aligned(var)
        and all(layout.same_strides(slot, var) for slot in slots)
    )


@cache
def _kernel_of(
    rule: Rule,
    passes: tuple[Measure | FusedStage, ...],
    update: Formula | None,
    stages: Stages,
    storage: tuple[str, ...],
    lines: tuple[str, ...],
    compute: type[np.floating],
    sides: tuple[int, int],
    flush: bool,
) -> Compiled:
    """The compiled kernel; arguments as those of `Short`."""
    name = np.dtype(compute).name
    kernel = Short(rule, passes, update, stages, storage, lines, name, sides, flush).write()
    return Compiled(kernel, np.float64)


class ShortGroup(Group):
    """As `Group`, of variables that are `short`; it runs passes, too."""

    def __init__(self, asked: StepRequest, members: list[int]) -> None:
        own = self._begin(asked, members)
        update: Any = asked.rule.update
        rule: Rule = update.rule
        work = work_of(rule)
        if work is None:
            raise TypeError(f"rule {rule.name!r} is not for these kernels")
        self._rule, self._work, self._stages = rule, work, asked.stages
        self._update, self._types = asked.rule.update, own.names
        self._views = [view_of(asked.variables[index].shape) for index in members]
        width = stream_of_pass(rule, own.names, len(rule.passes))
        base = np.zeros((len(members), width), np.int64)
        base[:, : len(own.names)] = own.base
        chunk = chunk_of(sum(own.sizes))
        chunks = dense_chunks(own.sizes, chunk)
        self._row = np.zeros(len(members), np.int64)
        self.table = make_table(base, chunks, cut_slices(chunks, chunk), self._row)
        self._batches: list[tuple[list[int], Batch]] = []  # for stages, with the rows of members
        for rows in alike(rule, [asked.variables[index] for index in members]):
            batch = Batch(rule, asked.variables, [members[row] for row in rows])
            batch.vectors.clear()  # they are the kernels' own
            self._batches.append((rows, batch))
        self._numbers: dict[str, Float64] = {}
        self._blocks: Float64 = np.empty((0, 0))
        self._tree = Tree(np.zeros(0, np.int64))
        self._sweeps: list[list[_Launch]] = []
        self._last: list[_Launch] = []
        self._staged: list[tuple[Tensor, Tensor]] = []  # slots that are written later

    def bind_slots(self, slots: Sequence[Sequence[Tensor]], apart: bool) -> None:
        """Have kernels read and write these slots of rows and columns, of each member.

        Args:
            slots: The slots.
            apart: Whether no gradient lies in them; else all are written once all are read.
        """
        first = len(self._types)
        self._staged = []
        kinds: dict[tuple[int, int, tuple[str, ...]], list[int]] = {}
        for member, own in enumerate(slots):
            view = self._views[member]
            for place, slot in enumerate(own):
                if not (apart and slot.is_contiguous() and layout.is_aligned(slot)):
                    self._staged.append((slot.detach(), slot.detach().contiguous().clone()))
                    slot = self._staged[-1][1]
                self.table.base[member, first + place] = slot.data_ptr()
            names = tuple(str(layout.STORAGE_NAMES[slot.dtype]) for slot in own)
            key = view.rows, view.columns, names
            kinds.setdefault(key, []).append(member)
        counts = np.array([-(-view.matrices // LANES) for view in self._views], np.int64)
        self._tree, self._blocks = Tree(counts), np.empty((len(self._rule.passes), counts.sum()))
        starts = (np.cumsum(counts) - counts) * self._blocks.itemsize
        for place in range(len(self._rule.passes)):
            column = stream_of_pass(self._rule, self._types, place)
            self.table.base[:, column] = self._blocks[place].ctypes.data + starts
        self._sweeps = [
            [self._launch(key, members, own, None) for key, members in kinds.items()]
            for own, _ in self._work.sweeps
        ]
        self._last = [
            self._launch(key, members, self._work.last, self._update)
            for key, members in kinds.items()
        ]

    def _launch(
        self,
        key: tuple[int, int, tuple[str, ...]],
        members: Sequence[int],
        passes: tuple[Measure | FusedStage, ...],
        update: Formula | None,
    ) -> _Launch:
        rows, columns, lines = key
        kernel = _kernel_of(
            self._rule, passes, update, self._stages, self._types, lines, self.dtype,
            (rows, columns), self.flush,
        )  # fmt: skip
        size = rows * columns
        counts = [self._views[member].matrices for member in members]
        chunk = max(1, chunk_of(sum(counts) * size) // (size * LANES)) * LANES
        chunks = dense_chunks(counts, chunk)
        chunks[:, 0] = np.array(members)[chunks[:, 0]]
        table = make_table(self.table.base, chunks, cut_slices(chunks, chunk), self._row)
        table.elements *= size
        return _Launch(kernel, table)

    def run_passes(self, columns: Columns) -> None:
        """Measure variables, and run stages over what was measured."""
        self._numbers = {}
        for _, batch in self._batches:
            batch.measured.clear()
        for slot, copy in self._staged:
            copy.copy_(slot)
        for (own, stages), launches in zip(self._work.sweeps, self._sweeps, strict=True):
            for each in launches:
                each.kernel.run_on_threads(*each.aim(self._scalars_for(each, columns), self.flush))
            for each in own:
                if isinstance(each, Measure) and each.over == "variable":
                    found = self._tree.combine(self._blocks[self._rule.passes.index(each)]) + 0.0
                    for rows, batch in self._batches:
                        batch.give(each.makes, torch.from_numpy(found[rows]).view(-1, 1, 1, 1))
                    self._numbers[each.makes] = np.empty(len(self.members))
            for rows, batch in self._batches:
                for stage in stages:
                    run_stage(self._rule, stage, batch, columns, _no_slot)
                for name, value in batch.measured.items():  # as formulas have them
                    self._numbers[name][rows] = value.reshape(-1).to(batch.kind).numpy()

    def _scalars_for(self, each: _Launch, columns: Columns) -> Float64:
        """The scalars of a kernel: one row, or one for each member."""
        rows = scalar_rows(each.kernel.scalars, self._scalars_of(each.kernel.scalars, columns))
        self._row[:] = self._rows if len(rows) > 1 else 0
        return np.ascontiguousarray(rows)

    def _scalars_of(self, names: Sequence[str], columns: Columns) -> dict[str, Any]:
        others = [name for name in names if name not in self._numbers]
        own = {name: self._numbers[name] for name in names if name in self._numbers}
        return {**super()._scalars_of(others, columns), **own}

    def compute_lines(
        self, measures: tuple[Measure, ...], stages: Stages, columns: Columns
    ) -> list[list[Tensor]]:
        """Nothing: it keeps its measures."""
        return [[] for _ in self.members]

    def make_calls(self, columns: Columns) -> list[Call]:
        """See `Group`."""
        calls: list[Call] = []
        for each in self._last:
            each.scalars = self._scalars_for(each, columns)
            calls.append(each.kernel.bind_argument(*each.aim(each.scalars, self.flush)))
        return calls

    def write_staged(self) -> list[Call]:
        """What writes slots that do not lie line after line, once all kernels have run."""
        return [partial(slot.copy_, copy) for slot, copy in self._staged]


class _Launch:
    """A kernel, and its work.

    Attributes:
        kernel: The kernel.
        scalars: Those that it was last aimed at.
    """

    def __init__(self, kernel: Compiled, table: Table) -> None:
        self.kernel, self._table = kernel, table
        self.scalars: Float64 = np.empty((0, 0))

    def aim(self, scalars: Float64, flush: bool) -> tuple[int, int]:
        """The argument of the kernel, and the number of threads."""
        self.scalars = scalars
        slices = len(self._table.bounds) - 1
        argument = self._table.fill_argument(scalars, flush)
        return argument, launch.threads_for(slices, self._table.elements)


def _no_slot(member: int, place: int) -> Tensor:
    raise RuntimeError("stages over numbers of variables see no slots")

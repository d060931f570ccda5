"""A step once more, in one call that looks and writes: what faces have in common of it.

The first step is planned (`_core/step.py`), the second rebinds its plan, and later ones are
replayed while every guard of `_engines/cpu/replay_kernel.py` holds. Otherwise the step is planned
again, which raises the errors there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, is_inference_mode_enabled

from thalweg._base.locks import importing
from thalweg._core.plan_cache import CachedPlan
from thalweg._core.step_adapter import StepAdapter
from thalweg._engines.array_types import Array, Int64
from thalweg._engines.cpu import kernel_group as engine
from thalweg._engines.cpu import replay_kernel as replay_kernel
from thalweg._engines.cpu import scalar_program
from thalweg._engines.cpu.guard_table import KINDS as KINDS
from thalweg._engines.cpu.guard_table import GuardTable as GuardTable
from thalweg._engines.cpu.guard_table import Member as Member
from thalweg._engines.cpu.guard_table import snapshot as snapshot
from thalweg._engines.cpu.launch import is_serial, threads_for
from thalweg._engines.cpu.openmp import parallel_address
from thalweg._engines.dense_plan import DensePlan
from thalweg._engines.layout import joined, runs_of
from thalweg._engines.protocol import Stages
from thalweg.formula import gradient_squares

if TYPE_CHECKING:
    from thalweg._core.replay_reductions import ReplayedReductions
    from thalweg._core.scalar_tracing import Program

# Of the numbers of a step; the last is of a scalar that is complex, say.
ERRORS = (TypeError, ValueError, ArithmeticError, RuntimeError, StructError)
_LARGE = 4 << 20  # elements of a step above which Python's lock is let go meanwhile; or of
_EACH = 8 << 10  # each variable, on average: a careful look at it holds the lock as long
_PLANNED = 4  # times as many take about as long as a plan made anew
_torch: Any = torch._C  # pyright: ignore[reportPrivateUsage]


class Launch:
    """A kernel's argument block and scalars, the steady step's own.

    Args:
        own: The variables that it updates.
        first: The position in the step of the first variable of its plan.
        places: For each variable of the step which scalars it has.

    Attributes:
        members: Positions in the step of the variables that it updates.
        places: Which scalars these have, each once.
        measures: What the rule measures of them, and makes of it.
    """

    def __init__(self, own: engine.Group, first: int, places: Sequence[Any]) -> None:
        self.group = own
        self.members = [first + member for member in own.members]
        self._table = table = own.table  # whose chunks and bounds the block below names
        self.kernel, self.names = own.kernel, own.kernel.scalars
        self.dtype = own.dtype
        self.unset: dict[str, Any] = dict.fromkeys(self.names, 0)
        # A tuple, of one name, too.
        self._chosen: Any = itemgetter(*self.names, *self.names[:1])
        self.places = list(dict.fromkeys(places[member] for member in self.members))
        rows = [self.places.index(places[member]) for member in self.members]
        self.base = table.base.copy()
        layout = Struct(f"={len(self.names)}{'f' if own.dtype is np.float32 else 'd'}")
        self._pack, self._size = layout.pack_into, layout.size
        self._argument = table.copy_of_argument(own.flush)
        self._argument[5] = self.base.ctypes.data
        self.elements, self._slices = table.elements, len(table.bounds) - 1
        self._row_of = np.array(rows, np.int64)
        self._packed = bytearray(self._size * len(self.places))
        self._rows = np.frombuffer(self._packed, self.dtype).reshape(-1, len(self.names))
        self._own_rows: Array | None = None
        self._point_at(self._rows, self._row_of)
        self._programs: Int64 = np.zeros((0, scalar_program.PROGRAM // 8), np.int64)
        self.measures: ReplayedReductions | None = None

    def separate_members(self) -> None:
        """Give each member its own row of scalars and its own chunks, which the call sets."""
        self.separate()
        self.chunks = self._table.chunks.copy()
        self._argument[4] = self.chunks.ctypes.data
        self._row_count = np.zeros(1, np.int64)  # of the rows that the call has filled

    def span(self, at: int) -> tuple[int, int, int]:
        """Return the chunks of the member at this index, as `Member.spans`."""
        return span_of(self.chunks, self._table.chunks, at)

    def place_program(self, at: int, made: Program, inputs: Sequence[tuple[int, int, int]]) -> int:
        """Have a program make the scalars of a place, for one step count at a time.

        Args:
            at: The index of the place.
            made: The program, whose first register is the step count.
            inputs: As for `Program.place`.

        Returns:
            The address of its record.
        """
        record, names, first, _ = self.program(at)
        made.place(record, names, first, 1, inputs)
        record[scalar_program.ROW_COUNT] = self._row_count.ctypes.data
        return record.ctypes.data

    def row_cell(self, at: int) -> int:
        """Return where the kernel reads which row the member at this index has."""
        return self._numbers[at:].ctypes.data

    @property
    def row_size(self) -> int:
        """Bytes of a row of scalars."""
        return self._size

    def set_shared(self, values: Mapping[str, Any]) -> None:
        """Set scalars in the rows of all members, among those that no program makes."""
        rows = self._rows if self._own_rows is None else self._own_rows
        for name in self.names:
            if name in values:
                rows[:, self.names.index(name)] = values[name]

    def _point_at(self, rows: Array, row_of: Int64) -> None:
        self._argument[6], self._argument[7] = row_of.ctypes.data, rows.ctypes.data

    def separate(self) -> tuple[Int64, Array]:
        """Have each member read a row of scalars of its own, first set as its place's.

        Returns:
            For each member which place that is; and the rows.
        """
        if self._own_rows is None:
            count = len(self.members)
            self._own_rows = np.zeros((count, len(self.names)), self.dtype)
            self._numbers = np.arange(count, dtype=np.int64)
            self._point_at(self._own_rows, self._numbers)
        return self._row_of, self._own_rows

    def take_programs(self, records: Int64) -> None:
        """Have the programs that make scalars, one for each place, in these records."""
        self._programs = records

    def program(self, at: int) -> tuple[Int64, Sequence[str], int, int]:
        """The record of a place; the names of a row, where the first row lies, how many."""
        rows = self._rows[at : at + 1] if self._own_rows is None else self._own_rows
        return self._programs[at], self.names, rows.ctypes.data, len(rows)

    def cells(self) -> list[int]:
        """Where the addresses of gradients go, for each member."""
        first, (step, item) = self.base.ctypes.data, self.base.strides
        return [first + step * k + item for k in range(len(self.base))]

    def record(self) -> tuple[int, int, int, int]:
        """The kernel and its argument; what calls it on several threads, and on how many."""
        return self.kernel.address, self._argument.ctypes.data, 0, 1

    def columns(self, name: str) -> list[tuple[int, int, int, bool, bool]]:
        """Where a scalar is: the first one, how many rows have it, and their bytes.

        Then whether it is stored as float32, and whether it is rounded to that.
        """
        own, is_narrow = self._own_rows, self.dtype is np.float32
        rows = self._rows if own is None else own
        first = rows.ctypes.data + rows.itemsize * self.names.index(name)
        found = [(first, len(rows), rows.strides[0], is_narrow, is_narrow)]
        if self.measures is not None and name in self.measures.names:
            found.append((*self.measures.column(name), False, is_narrow))
        return found

    def threads(self) -> tuple[int, int]:
        """What calls it on several threads now, and on how many."""
        count = threads_for(self._slices, self.elements)
        return parallel_address() if count > 1 else 0, count

    def set_scalars(self, made: Mapping[Any, Mapping[str, Any]]) -> None:
        """Set the scalars of each place."""
        at = 0
        if self.measures is not None:
            self.measures.set_scalars([made[place] for place in self.places])
            made = {place: {**self.unset, **made[place]} for place in self.places}
        for place in self.places:
            self._pack(self._packed, at, *self._chosen(made[place])[:-1])
            at += self._size
        if self._own_rows is not None:
            np.take(self._rows, self._row_of, 0, self._own_rows, "clip")


class Launches:
    """The kernels of a step.

    Args:
        plans: Of each rule, whose variables are those of the step, one after the other.
        places: For each variable which scalars it has.

    Raises:
        TypeError: What a rule makes of its measures cannot be made in the call.

    Attributes:
        of: Those of each plan.
        cells: Where the address of each variable's gradient goes.
    """

    def __init__(self, plans: Sequence[CachedPlan], places: Sequence[Any]) -> None:
        self.of: list[list[Launch]] = []
        first = 0
        for planned in plans:
            groups = cast("list[engine.Group]", plan_of(planned).groups)
            self.of.append([Launch(each, first, places) for each in groups])
            if planned.request.rule.per_variable is not None:
                slots = planned.scalar_slots or [()] * len(planned.request.variables)
                for each in self.of[-1]:
                    _measure(each, planned, [slots[member - first] for member in each.members])
            first += len(planned.request.variables)
        self.all = list(chain.from_iterable(self.of))
        self._measures = [each.measures for each in self.all if each.measures is not None]
        self._large = [k for k, each in enumerate(self.all) if not is_serial(each.elements)]
        self._spare = np.zeros(1, np.int64)  # for gradients without elements
        self.cells = [self._spare.ctypes.data] * len(places)
        count = sum(len(each.places) for each in self.all)
        self.programs = np.zeros((count, scalar_program.PROGRAM // 8), np.int64)
        left = self.programs
        for launch in self.all:
            launch.take_programs(left)
            left = left[len(launch.places) :]
            for member, cell in zip(launch.members, launch.cells(), strict=True):
                self.cells[member] = cell

    def records(self) -> list[tuple[int, int, int, int]]:
        return [each.record() for each in self.all]

    def rule_measures(self) -> tuple[list[tuple[int, int, int, int]], Int64]:
        """What measures for rules, as `records`, and what makes scalars of that."""
        records = np.array([each.record for each in self._measures], np.int64)
        return [each.launched() for each in self._measures], records

    @property
    def may_have_threads(self) -> bool:
        """Whether one is so large that it may be worth several threads."""
        return bool(self._large or self._measures)

    def set_threads(self, found: GuardTable) -> None:
        """Have those that are worth it run on as many threads as torch has now."""
        for k in self._large:
            found.launches[k, 2:] = self.all[k].threads()
        for k, each in enumerate(self._measures):
            if not each.sweep.is_serial:
                found.rule_measures[k, 2:] = each.threads()


def span_of(chunks: Int64, full: Int64, member: int) -> tuple[int, int, int]:
    """Return the chunks of a member of a work table, as `Member.spans`.

    Args:
        chunks: The table that a kernel reads, whose lengths may change.
        full: The table with all lengths.
        member: The index of the member.
    """
    begin, end = map(int, np.searchsorted(full[:, 0], [member, member + 1]))
    length = full.strides[0] * begin + full.strides[1] * 3
    return chunks.ctypes.data + length, full.ctypes.data + length, end - begin


def _measure(launch: Launch, planned: CachedPlan, slots: Sequence[Sequence[Tensor]]) -> None:
    """Have a kernel begin with what its rule measures.

    Raises:
        TypeError: That cannot be done in the call.
    """
    if not plan_of(planned).measures_in_place:
        raise TypeError("Copies of variables are measured.")
    with importing:
        from thalweg._core.replay_reductions import ReplayedReductions
    launch.measures = ReplayedReductions(
        planned.request.rule, launch, plan_of(planned).stages, slots
    )


def is_repeatable(planned: CachedPlan | None, hooks: StepAdapter, stages: Stages = ()) -> bool:
    """Whether a step needs no more than a plan over dense gradients, its scalars and counts.

    Args:
        planned: The step.
        hooks: What the face said about it.
        stages: What the face does to gradients in it.
    """
    if planned is None or not isinstance(planned.ready, DensePlan):
        return False
    ready, rule = planned.ready, planned.request.rule
    return (
        all(isinstance(each, engine.Group) and each.kernel.scalars for each in ready.groups)
        and ready.stages == stages
        and not (stages and gradient_squares in rule.measures.values())  # which follow from others
        and not rule.calls_users
        and rule.per_optimizer is None
        and not rule.levels
        and not hooks.selection.check_numerics
        and hooks.sharing is None
        and hooks.there is None
        and hooks.taken is None
        and not hooks.calls
    )


def are_small(plans: Sequence[CachedPlan], may_lack: bool = False) -> bool:
    """Return whether Python's lock may be held during the plans of a step; see `may_hold_lock`."""
    groups = cast("list[engine.Group]", [own for each in plans for own in plan_of(each).groups])
    count = sum(len(each.members) for each in groups)
    return may_hold_lock(count, sum(each.table.elements for each in groups), may_lack)


def may_hold_lock(variables: int, elements: int, may_lack: bool = False) -> bool:
    """Return whether Python's lock may be held while variables are updated.

    Args:
        variables: How many are updated.
        elements: How many elements they have.
        may_lack: Whether a step may lack gradients. Planned anew it would hold the lock longer.
    """
    factor = _PLANNED if may_lack else 1
    return elements <= factor * max(_LARGE, _EACH * variables)


def plan_of(planned: CachedPlan) -> DensePlan:
    """The plan of a step that is repeatable."""
    return cast("DensePlan", planned.ready)


def written_of(planned: CachedPlan) -> list[Tensor]:
    """What a plan writes, as far as versions tell."""
    return [*plan_of(planned).written, *_scalar_slots_of(planned)]


def bounds_of(planned: CachedPlan) -> Int64:
    """Begins and ends of what a plan writes, ascending."""
    scalars = _scalar_slots_of(planned)
    return (
        joined([plan_of(planned).bounds, runs_of(scalars)]) if scalars else plan_of(planned).bounds
    )


def _scalar_slots_of(planned: CachedPlan) -> list[Tensor]:
    """The slots of shape () that a rule writes itself; others are columns."""
    if planned.request.rule.per_variable is None:
        return []
    return [slot for own in planned.scalar_slots for slot in own]


def stands(planned: CachedPlan, gradients: Sequence[Any]) -> bool:
    """Whether the careful look finds a step to be the one before, with these gradients."""
    for slot in _scalar_slots_of(planned):  # in blocks, of which a part may be left
        end = (slot.storage_offset() + 1) * slot.element_size()
        if slot.untyped_storage().nbytes() < end:
            return False
    try:
        return planned.ready.try_rebind(planned.request._replace(gradients=gradients))
    finally:
        planned.ready.release_gradients()


def hold_tensors(found: GuardTable, tensors: Sequence[Tensor]) -> bool:
    """Have the look compare tensors; False if it could not."""
    return all(
        each.device.type == "cpu"
        and each.layout == torch.strided
        and (each.data_ptr() != 0 or not each.numel())  # `_efficientzerotensor` has no memory
        and found.tensor(each) is not None
        for each in tensors
    )


def is_traced() -> bool:
    """Whether somebody wants to see what is done to tensors, or they have no versions."""
    return bool(
        _torch._len_torch_dispatch_stack()
        or _torch._len_torch_function_stack()
        or is_inference_mode_enabled()
        or _torch._get_tracing_state() is not None
    )

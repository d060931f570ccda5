"""Replay: a step is repeated in one native call that checks guards and writes.

The first step is planned (`_core/step.py`), the second rebinds its plan, and later steps are
replayed while all guards of `_engines/cpu/replay_guards.py` hold. If a guard fails, the step is
planned again, which raises any errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, is_inference_mode_enabled

from thalweg._base.fused_stage import FusedStage
from thalweg._base.locks import importing
from thalweg._core.plan_cache import CachedPlan
from thalweg._core.step_adapter import StepAdapter
from thalweg._engines.array_types import Array, Int64
from thalweg._engines.cpu import kernel_group as engine
from thalweg._engines.cpu import replay_block as replay_block
from thalweg._engines.cpu.guard_table import KINDS as KINDS
from thalweg._engines.cpu.guard_table import GuardedStep as GuardedStep
from thalweg._engines.cpu.guard_table import GuardTable as GuardTable
from thalweg._engines.cpu.guard_table import Member as Member
from thalweg._engines.cpu.guard_table import make_guard_table as make_guard_table
from thalweg._engines.cpu.launch import LOCKED_ELEMENTS, is_serial, threads_for
from thalweg._engines.cpu.openmp import parallel_address
from thalweg._engines.cpu.replay_records import ReplayArgument, make_program_records, set_row_count
from thalweg._engines.dense_plan import DensePlan
from thalweg._engines.layout import merge_byte_spans, merge_ranges
from thalweg._engines.protocol import Stages, StepPlan
from thalweg.formula import gradient_squares

if TYPE_CHECKING:
    from thalweg._core.replay_reductions import ReplayedReductions
    from thalweg._core.scalar_tracing import Program
    from thalweg._engines.staged_step import StagedStep

# Errors in the scalars of a step; `StructError` is raised for a complex one.
ERRORS = (TypeError, ValueError, ArithmeticError, RuntimeError, StructError)
# The kernels of a step with more elements, in all and per variable, run without Python's lock.
# Planning a variable holds the lock for about as long as updating `_LARGE_PER_VARIABLE` elements.
_LARGE = LOCKED_ELEMENTS
_LARGE_PER_VARIABLE = 8 << 10
_torch: Any = torch._C  # pyright: ignore[reportPrivateUsage]


class Launch:
    """Kernel of a replay, with its argument block and scalars.

    A *place* is a set of variables that share all scalars. It has a key, and a row in the kernel's
    table of scalars.

    Args:
        group: The variables that the kernel updates.
        first: The index in the step of the first variable of the kernel's plan.
        places: For each variable of the step the key of its place.

    Attributes:
        members: Indices in the step of the variables that the kernel updates.
        places: The distinct keys of the places of `members`.
        measures: The rule's reductions over these variables, which also compute scalars; or None.
    """

    def __init__(self, group: engine.Group, first: int, places: Sequence[Any]) -> None:
        self.group = group
        self.members = [first + member for member in group.members]
        self.kernel, table = group.update_launch
        self.dtype, self.names = group.dtype, self.kernel.scalars
        self.unset: dict[str, Any] = dict.fromkeys(self.names, 0)
        # One more name, so that the result is a tuple for a single name, too.
        self._chosen: Any = itemgetter(*self.names, *self.names[:1])
        self.places = list(dict.fromkeys(places[member] for member in self.members))
        rows = [self.places.index(places[member]) for member in self.members]
        letter = "f" if self.kernel.dtype is np.float32 else "d"
        layout = Struct(f"={len(self.names)}{letter}")
        self._pack, self._size = layout.pack_into, layout.size
        self._argument = ReplayArgument(table, group.flush)
        self.base = self._argument.base
        self.elements, self._slices = table.elements, len(table.bounds) - 1
        self._row_of = np.array(rows, np.int64)
        self._packed = bytearray(self._size * len(self.places))
        self._rows = np.frombuffer(self._packed, self.kernel.dtype).reshape(-1, len(self.names))
        self._own_rows: Array | None = None
        self._argument.use_rows(self._rows, self._row_of)
        self._programs = make_program_records(0)
        self.measures: ReplayedReductions | None = None

    def separate_members(self) -> None:
        """Give each variable a separate row of scalars and separate lengths for replays to set."""
        self.use_member_rows()
        self._argument.copy_chunks()
        self._row_count = np.zeros(1, np.int64)

    def span(self, index: int) -> tuple[int, int, int]:
        """Return the chunks of the variable with this index in `members`, as in `Member.spans`."""
        return self._argument.span(index)

    def place_program(
        self, index: int, program: Program, inputs: Sequence[tuple[int, int, int]]
    ) -> int:
        """Make native code compute the scalars of a place by `program` in each replay.

        A place is a set of variables with equal scalars. Call `separate_members` first.

        Args:
            index: The index of the place in `self.places`.
            program: The program, whose first register is the step count.
            inputs: (register, address of a number, type code of the number) for each register that
                every run loads from memory.

        Returns:
            The address of the program's record, the integers that native code reads.
        """
        record, names, first, _ = self.program(index)
        program.place(record, names, first, 1, inputs)
        set_row_count(record, self._row_count)
        return record.ctypes.data

    def row_cell(self, index: int) -> int:
        """Return the address of the row index of the variable with this index in `members`."""
        return self._numbers[index:].ctypes.data

    @property
    def row_size(self) -> int:
        """Bytes of a row of scalars."""
        return self._size

    def set_shared(self, values: Mapping[str, Any]) -> None:
        """Write scalars to all rows; names that the kernel does not read are ignored."""
        rows = self._rows if self._own_rows is None else self._own_rows
        for name in self.names:
            if name in values:
                rows[:, self.names.index(name)] = values[name]
        if self.measures is not None:
            self.measures.set_shared(values)

    def use_member_rows(self) -> tuple[Int64, Array]:
        """Give each variable of the kernel a separate row of scalars, at the first call.

        Before, variables with equal scalars (a place) share a row. The new rows are 0 until
        `set_scalars` fills them.

        Returns:
            For each variable the index of its place; and the array (variables, scalars).
        """
        if self._own_rows is None:
            count = len(self.members)
            self._own_rows = np.zeros((count, len(self.names)), self.kernel.dtype)
            self._numbers = np.arange(count, dtype=np.int64)
            self._argument.use_rows(self._own_rows, self._numbers)
        return self._row_of, self._own_rows

    def row_target(self) -> tuple[Sequence[str], Array]:
        """Return the names of the kernel's scalars, and an array with a row for each variable."""
        return self.names, self.use_member_rows()[1]

    def take_programs(self, records: Int64) -> None:
        """Set the records of the programs that compute scalars, one for each place."""
        self._programs = records

    def program(self, index: int) -> tuple[Int64, Sequence[str], int, int]:
        """Return what a program needs to write the scalars of the place with this index.

        Returns:
            The record to fill; the names of the scalars of a row; the address of the first row; and
            the number of rows.
        """
        rows = self._rows[index : index + 1] if self._own_rows is None else self._own_rows
        return self._programs[index], self.names, rows.ctypes.data, len(rows)

    def cells(self) -> list[int]:
        """Return the address where each member's gradient address is stored."""
        return self._argument.cells

    def record(self) -> tuple[int, int, int, int]:
        """Return (kernel address, argument address, 0, 1) for a call on one thread."""
        return self.kernel.address, self._argument.address, 0, 1

    def columns(self, name: str) -> list[tuple[int, int, int, bool, bool]]:
        """Return the locations of a scalar: in the kernel, and in each reduction that reads it.

        Returns:
            A tuple for each location: (address in the first row, number of rows, stride of rows in
                bytes, True if stored as float32, True if rounded to float32).
        """
        member_rows, is_narrow = self._own_rows, self.dtype is np.float32
        rows = self._rows if member_rows is None else member_rows
        first = rows.ctypes.data + rows.itemsize * self.names.index(name)
        is_stored_narrow = self.kernel.dtype is np.float32
        locations = [(first, len(rows), rows.strides[0], is_stored_narrow, is_narrow)]
        if self.measures is not None:
            locations += [(*x, False, is_narrow) for x in self.measures.columns(name)]
        return locations

    def threads(self) -> tuple[int, int]:
        """Return the address of the thread launcher, or 0, and the number of threads to use now."""
        count = threads_for(self._slices, self.elements)
        return parallel_address() if count > 1 else 0, count

    def set_scalars(self, scalars: Mapping[Any, Mapping[str, Any]]) -> None:
        """Write the scalars of the step to the rows of the kernel and of its reductions.

        Args:
            scalars: {key: {name: scalar}} for each place, a set of variables with equal scalars.
                Scalars that reductions compute are missing.
        """
        offset = 0
        if self.measures is not None:
            self.measures.set_scalars([scalars[place] for place in self.places])
            scalars = {place: {**self.unset, **scalars[place]} for place in self.places}
        for place in self.places:
            self._pack(self._packed, offset, *self._chosen(scalars[place])[:-1])
            offset += self._size
        # "clip" lets NumPy write to `out` without a buffer; all indices are valid.
        if self._own_rows is not None:
            np.take(self._rows, self._row_of, 0, self._own_rows, "clip")


class Launches:
    """All kernels of a replay.

    Args:
        plans: The plan of each rule; together they have the step's variables, in order.
        places: For each variable the key of its scalars.

    Raises:
        TypeError: The reductions of a rule cannot be replayed.

    Attributes:
        of: The kernels of each plan.
        passes: The kernels of each pass of each plan.
        cells: For each variable the address where its gradient's address is stored.
    """

    def __init__(self, plans: Sequence[CachedPlan], places: Sequence[Any]) -> None:
        self.of: list[list[Launch]] = []
        self.passes: list[list[list[Launch]]] = []
        first = 0
        for cached_plan in plans:
            groups = cast("list[engine.Group]", plan_of(cached_plan).groups)
            self.of.append([Launch(group, first, places) for group in groups])
            self.passes.append(
                [
                    [Launch(cast("engine.Group", group), first, places) for group in plan.groups]
                    for plan in _pass_plans_of(cached_plan)
                ]
            )
            rule = cached_plan.request.rule
            for launch in self.of[-1] if rule.per_variable or rule.is_of_lines else ():
                _add_reductions(launch, cached_plan, first)
            first += len(cached_plan.request.variables)
        self.all = list(chain.from_iterable(self.of))
        self._measures = [launch.measures for launch in self.all if launch.measures is not None]
        self._sweeps = [sweep for measures in self._measures for sweep in measures.sweeps]
        self._large = [k for k, launch in enumerate(self.all) if not is_serial(launch.elements)]
        # A variable that no kernel reads, such as an empty one, has its gradient's address here.
        self._spare = np.zeros(1, np.int64)
        self.cells = [self._spare.ctypes.data] * len(places)
        with_passes = [*self.all, *self.of_passes()]
        self.programs = make_program_records(sum(len(launch.places) for launch in with_passes))
        remaining = self.programs
        for launch in with_passes:
            launch.take_programs(remaining)
            remaining = remaining[len(launch.places) :]
        for launch in self.all:
            for member, cell in zip(launch.members, launch.cells(), strict=True):
                self.cells[member] = cell

    def of_passes(self) -> Iterator[Launch]:
        """Yield the kernels of all passes of all plans, plan by plan."""
        for passes in self.passes:
            yield from chain.from_iterable(passes)

    def records(self) -> list[tuple[int, int, int, int]]:
        return [launch.record() for launch in self.all]

    def rule_measures(self) -> list[tuple[int, int, int, int]]:
        """Return (kernel address, argument address, 0, 1) of each launch of rules' reductions."""
        return [(sweep.kernel.address, sweep.address, 0, 1) for sweep in self._sweeps]

    def spreads(self) -> list[list[int]]:
        """Return the records by which the native call sets scalars of reductions and kernels."""
        return [measures.spread_record() for measures in self._measures]

    @property
    def may_have_threads(self) -> bool:
        """True if a kernel is large enough for several threads, or if there are reductions."""
        return bool(self._large or self._measures)

    def set_threads(self, guards: GuardTable) -> None:
        """Write torch's current number of threads for each large kernel to `guards`."""
        # The number may have changed since the last step.
        for index in self._large:
            guards.launches[index, 2:] = self.all[index].threads()
        for index, sweep in enumerate(self._sweeps):
            if not sweep.is_serial:
                count = sweep.threads()
                guards.rule_measures[index, 2:] = parallel_address() if count > 1 else 0, count


def _add_reductions(launch: Launch, cached_plan: CachedPlan, first: int) -> None:
    """Set `launch.measures` to the reductions of the rule over the variables of a kernel.

    Args:
        launch: The kernel; changed.
        first: The index of the plan's first variable among all variables of the step.

    Raises:
        TypeError: Native code cannot run the reductions.
    """
    plan, rule = plan_of(cached_plan), cached_plan.request.rule
    if not plan.measures_in_place:
        raise TypeError("Copies of variables are measured.")
    members = [member - first for member in launch.members]
    scalar_slots, shaped_slots = (
        [slots[member] for member in members] if slots else [()] * len(members)
        for slots in (cached_plan.scalar_slots, cached_plan.shaped_slots)
    )
    with importing:
        from thalweg._core.replay_lines import replay_lines
        from thalweg._core.replay_reductions import replay_sums
    launch.measures = (
        replay_lines(rule, launch, plan.stages, scalar_slots, shaped_slots)
        if rule.is_of_lines
        else replay_sums(rule, launch, plan.stages, scalar_slots)
    )


def is_repeatable(
    cached_plan: CachedPlan | None,
    adapter: StepAdapter,
    stages: Stages = (),
    may_have_passes: bool = False,
) -> bool:
    """Return True if a replay can take the step of a plan; False for None.

    The plan must run generated CPU kernels over dense gradients. The step must be unsharded, with
    all decisions and scalars on the host, without callbacks and without checks for finite numbers.
    The rule must be the library's, and must not need sums over all variables.

    Args:
        stages: The transforms of gradients; a plan with other transforms gives False.
        may_have_passes: True if the replay can run a rule's passes, the computations over memory
            before the update. With False, a rule with passes gives False.
    """
    if cached_plan is None or not (may_have_passes or isinstance(cached_plan.ready, DensePlan)):
        return False
    rule = cached_plan.request.rule
    if rule.passes and not _can_replay_passes(cached_plan.ready):
        return False
    plans: list[object] = [plan_of(cached_plan), *_pass_plans_of(cached_plan)]
    return (
        all(_is_repeatable_plan(plan, stages) for plan in plans)
        # A planned step derives these squares from norms; the bits of a reduction may differ.
        and not (stages and gradient_squares in rule.measures.values())
        and not rule.calls_users
        and rule.per_optimizer is None
        and not rule.levels
        and not adapter.selection.check_numerics
        and adapter.sharing is None
        and adapter.there is None
        and adapter.apply_flag is None
        and not adapter.calls
    )


def _is_repeatable_plan(step_plan: object, stages: Stages) -> bool:
    """Return True if a plan runs generated CPU kernels over dense gradients.

    The kernels must have the gradient transforms `stages`.
    """
    return (
        isinstance(step_plan, DensePlan)
        and step_plan.stages == stages
        and all(
            isinstance(group, engine.Group) and group.update_launch[0].scalars
            for group in step_plan.groups
        )
    )


def _can_replay_passes(step_plan: StepPlan) -> bool:
    """Return True if a plan has passes that a replay can run natively or between native calls."""
    with importing:
        from thalweg._engines.staged_step import StagedStep
    return isinstance(step_plan, StagedStep) and step_plan.can_replay_passes()


def are_small(plans: Sequence[CachedPlan]) -> bool:
    """Return True if plans are so small that an update may hold Python's lock.

    The limit grows with the number of variables, because planning holds the lock, too.
    """
    groups = cast("list[engine.Group]", [group for plan in plans for group in plan_of(plan).groups])
    variables = sum(len(group.members) for group in groups)
    elements = sum(group.table.elements for group in groups)
    return elements <= max(_LARGE, _LARGE_PER_VARIABLE * variables)


def plan_of(cached_plan: CachedPlan) -> DensePlan:
    """Return the plan that updates the variables, without the passes of the rule."""
    has_passes = cached_plan.request.rule.passes
    plan = staged_plan_of(cached_plan).update_plan if has_passes else cached_plan.ready
    return cast("DensePlan", plan)


def staged_plan_of(cached_plan: CachedPlan) -> StagedStep:
    """Return the plan of a rule with passes."""
    return cast("StagedStep", cached_plan.ready)


def _pass_plans_of(cached_plan: CachedPlan) -> list[DensePlan]:
    """Return the plan of each pass over elements; [] for a rule without passes."""
    has_passes = cached_plan.request.rule.passes
    return cast("list[DensePlan]", staged_plan_of(cached_plan).pass_plans if has_passes else [])


def written_of(cached_plan: CachedPlan) -> list[Tensor]:
    """Return all tensors that a step writes: variables, slots and 16-bit copies."""
    return [*plan_of(cached_plan).written, *_other_slots_of(cached_plan)]


def tensor_addresses_of(cached_plan: CachedPlan) -> list[tuple[Tensor, int]]:
    """Return (tensor, address) of all tensors that the update and the passes access."""
    plans = [plan_of(cached_plan), *_pass_plans_of(cached_plan)]
    return [pair for plan in plans for pair in plan.tensor_addresses()]


def bounds_of(cached_plan: CachedPlan) -> Int64:
    """Return begin and end of each range of memory that a step writes, as ascending addresses."""
    bounds, slots = plan_of(cached_plan).bounds, _other_slots_of(cached_plan)
    return merge_ranges([bounds, merge_byte_spans(slots)]) if slots else bounds


def _other_slots_of(cached_plan: CachedPlan) -> list[Tensor]:
    """Return slots that a step writes outside of its update kernel.

    If the rule has `per_variable`, its slots of shape () are included. Slots with a number for each
    row or column are included if the rule's fused stages write them.
    """
    rule, slots = cached_plan.request.rule, list[Tensor]()
    if rule.per_variable is not None:
        slots += chain.from_iterable(cached_plan.scalar_slots)
    if rule.is_of_lines:
        stages = (entry for entry in rule.passes if isinstance(entry, FusedStage))
        names = {name for stage in stages for name in stage.makes}
        for var, var_slots in zip(cached_plan.request.variables, cached_plan.shaped_slots):
            pairs = zip(rule.shaped_slots, var_slots if var.numel() else ())
            slots += [slot for shaped_slot, slot in pairs if shaped_slot.name in names]
    return slots


def stands(cached_plan: CachedPlan, gradients: Sequence[Any]) -> bool:
    """Return True if the plan is still valid for its slots, and valid for new gradients.

    The gradients are bound to the plan for this check, and released afterwards.

    Args:
        gradients: A gradient for each variable of the plan.
    """
    # Slots share a block of memory, which users may have truncated.
    has_reductions = cached_plan.request.rule.per_variable is not None
    for slot in chain.from_iterable(cached_plan.scalar_slots if has_reductions else ()):
        end = (slot.storage_offset() + 1) * slot.element_size()
        if slot.untyped_storage().nbytes() < end:
            return False
    try:
        if cached_plan.request.rule.is_of_lines:
            staged_plan_of(cached_plan).check_slots(cached_plan.shaped_slots)
        return cached_plan.ready.try_rebind(cached_plan.request._replace(gradients=gradients))
    except (ValueError, TypeError):
        return False
    finally:
        cached_plan.ready.release_gradients()


def hold_tensors(guards: GuardTable, tensors: Sequence[Tensor]) -> bool:
    """Guard all tensors by `guards.guard_tensor`; return False if a tensor cannot be guarded.

    A guarded tensor must be strided, on the CPU, with at most five dimensions, and with memory for
    its elements. After a failure, later tensors are not guarded.
    """
    return all(
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        # `torch._efficientzerotensor` has elements, but no memory.
        and (tensor.data_ptr() != 0 or not tensor.numel())
        and guards.guard_tensor(tensor) is not None
        for tensor in tensors
    )


def is_traced() -> bool:
    """Return True if torch observes operations, traces, or infers; replays then stop."""
    return bool(
        _torch._len_torch_dispatch_stack()
        or _torch._len_torch_function_stack()
        or is_inference_mode_enabled()
        or _torch._get_tracing_state() is not None
    )

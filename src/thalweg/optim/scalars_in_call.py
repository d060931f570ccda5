"""Scalars of torch-style rules, computed in the native call that replays a step.

The call reads learning rates, betas and other options from the parameter groups and the step count
of each parameter from its state, and runs the traced `prepare` of the rule on them. A scheduler, a
changed option or a parameter without a gradient thus needs no Python code in the step.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import get_default_dtype

from thalweg._base.locks import importing
from thalweg._core.replay import (
    KINDS,
    GuardTable,
    Launch,
    Launches,
    Member,
    replay_block,
    staged_plan_of,
)
from thalweg._core.step_adapter import Dtype
from thalweg._engines.array_types import Float64, Int64
from thalweg.optim.group_options import Options
from thalweg.optim.param_scalars import STEP, Column
from thalweg.optim.replay_scalars import RATE, TorchScalars

if TYPE_CHECKING:
    from thalweg._core.param_groups import Group
    from thalweg._core.replay_passes import ReplayedPasses
    from thalweg._core.scalar_tracing import Program
    from thalweg.optim.param_state import AnyColumn, ParamState
    from thalweg.optim.replay_substep import ReplayedSubStep

_FLOAT64 = KINDS[torch.float64]
_SINGLE = torch.float32, torch.float32


class ScalarsInCall:
    """Native programs that compute the scalars of a replayed step, with their inputs.

    Args:
        sub_steps: The replayed update of each rule.

    Attributes:
        keys: The key of each parameter's scalars: the index of the parameter's group.

    Raises:
        TypeError: The scalars of a rule cannot be computed in the call.
    """

    def __init__(self, sub_steps: Sequence[ReplayedSubStep], groups: Sequence[Group]) -> None:
        self._sub_steps, self._groups = sub_steps, groups
        self.keys: list[Hashable] = [place for sub_step in sub_steps for place in sub_step.places]
        self._scalars: list[dict[int, TorchScalars]] = []
        for sub_step in sub_steps:
            _check_sub_step(sub_step)
            scalars_by_group = {
                index: TorchScalars(sub_step.adapter, index, sub_step.places.index(index))
                for index in dict.fromkeys(sub_step.places)
            }
            for scalars in scalars_by_group.values():
                scalars.check_in_call()
            self._scalars.append(scalars_by_group)
        self._programs: list[Program] = []  # whose registers their records name
        self._numbers: list[dict[str, Float64]] = []  # of each group, which the call writes
        self._addresses: list[dict[str, tuple[int, int]]] = []  # by hyperparameter
        self._state_numbers = [_make_number_records(sub_step) for sub_step in sub_steps]

    def hold_groups(self, snapshot: GuardTable, other_options: Mapping[int, Options]) -> None:
        """Add guards of the options of all groups to a guard table; call before `place_programs`.

        At each native call, guards copy options that are floats to arrays in `self._numbers`.
        These options may change. If any other option changed, the call takes no step.

        Args:
            snapshot: The guard table of the native call, to which guards are added.
            other_options: {group index: options} of groups without parameters in the step.
        """
        for index, group in enumerate(self._groups):
            readers = [scalars[index] for scalars in self._scalars if index in scalars]
            options = readers[0].options if readers else other_options[index]
            # A float that some program has as a constant must not change, like other options.
            numbers = {
                key: np.zeros(len(names))
                for key, names in options.entries.items()
                if all(reader.reads(names) for reader in readers)
            }
            snapshot.guard_dict(group, None, numbers)
            for pair in options.lists:
                snapshot.guard_list(pair)
            self._numbers.append(numbers)
            addresses = {
                name: (items.ctypes.data + items.itemsize * k, _FLOAT64)
                for key, items in numbers.items()
                for k, name in enumerate(options.entries[key])
            }
            if (rate := options.moving_rate) is not None:
                snapshot.guard_tensor(rate)
                addresses[RATE] = rate.data_ptr(), KINDS[rate.dtype]
            self._addresses.append(addresses)

    @staticmethod
    def set_rows_per_param(launches: Launches) -> None:
        """Give each parameter its own row of scalars in the tables of all kernels and passes."""
        for launch in (*launches.all, *launches.of_passes()):
            launch.separate_members()

    def place_programs(
        self, launches: Launches, spans: Sequence[Mapping[int, tuple[int, int, int]]]
    ) -> list[Member]:
        """Give each kernel one native program per group, which computes the kernel's scalars.

        Return a `Member` for each parameter of the step: a record with the parameter's program.

        Args:
            launches: The kernels of the step; changed.
            spans: Tables {index of a parameter in the step: entry to add to its `Member.spans`}.
        """
        members: list[Member] = []
        for index, (kernels, scalars) in enumerate(zip(launches.of, self._scalars, strict=True)):
            members += _make_members(self._sub_steps[index], self._state_numbers[index])
            for launch in kernels:
                self._set_members(members, launch, scalars, spans)
        return members

    def place_pass_programs(
        self, launches: Launches, members: Sequence[Member]
    ) -> tuple[list[Member], list[ReplayedPasses]]:
        """Give kernels that run before the update (passes and matrix stages) programs for scalars.

        Args:
            launches: The kernels of the step; changed.
            members: The result of `place_programs`; not changed.

        Returns:
            (members, passes). `members` has a `Member` of every parameter of the step for the first
                pass or matrix stage, then for the next. The program is 0 for parameters outside of
                the pass. `passes` has a `ReplayedPasses` for each rule with passes.
        """
        pass_members: list[Member] = []
        replayed: list[ReplayedPasses] = []
        unplaced = [member._replace(program=0, spans=()) for member in members]
        first = 0
        for sub_step, passes, scalars in zip(
            self._sub_steps, launches.passes, self._scalars, strict=True
        ):
            for kernels in passes:
                records = [*unplaced]
                for launch in kernels:
                    self._set_members(records, launch, scalars, ())
                pass_members += records
            if passes:
                with importing:
                    from thalweg._core.replay_passes import ReplayedPasses, StageScalars
                stage_scalars = StageScalars(staged_plan_of(sub_step.plan), sub_step.places)
                for index, place in enumerate(stage_scalars.places):
                    stage_scalars.place_program(
                        index, *self._build_program(np.float64, place, scalars)
                    )
                end = first + len(sub_step.owners)
                staged_members = stage_scalars.members(unplaced[first:end])
                pass_members += [*unplaced[:first], *staged_members, *unplaced[end:]]
                arguments = passes, launches.cells, stage_scalars
                replayed.append(ReplayedPasses(sub_step.plan, *arguments))
            first += len(sub_step.owners)
        return pass_members, replayed

    def _set_members(
        self,
        members: list[Member],
        launch: Launch,
        scalars: Mapping[int, TorchScalars],
        spans: Sequence[Mapping[int, tuple[int, int, int]]],
    ) -> None:
        """Give a kernel one native program per group; enter the programs in `members`.

        Args:
            members: A `Member` for each parameter of the step, changed in place. Parameters of the
                kernel get a new `Member` with the program and the address of its scalars.
            scalars: The scalars of the rule, by group index.
            spans: Tables {index of a parameter: entry to add to its `Member.spans`}.
        """
        programs: list[int] = []
        # Reductions and kernels receive copies of their scalars.
        target: Any = launch if launch.measures is None else launch.measures.given
        dtype = launch.dtype if target is launch else np.float64
        for index, place in enumerate(launch.places):
            program, inputs = self._build_program(dtype, place, scalars)
            programs.append(target.place_program(index, program, inputs))
        for row, position in enumerate(launch.members):
            index = launch.places.index(self.keys[position])
            other_spans = [table[position] for table in spans if position in table]
            members[position] = members[position]._replace(
                program=programs[index],
                row_cell=target.row_cell(row),
                row_size=target.row_size,
                spans=(launch.span(row), *other_spans),
            )

    def _build_program(
        self, dtype: Dtype, place: Hashable, scalars: Mapping[int, TorchScalars]
    ) -> tuple[Program, list[tuple[int, int, int]]]:
        """Build a program that computes the scalars of a group; keep it in `self._programs`.

        Args:
            place: The index of the group.
            scalars: {group index: scalars of the rule}.

        Returns:
            The program; and (register, address, format in `KINDS`) of each hyperparameter that the
            program loads from memory.
        """
        group = cast("int", place)
        program = scalars[group].program_for(dtype)
        # Records have addresses in the program, which must live as long as they.
        self._programs.append(program)
        addresses = self._addresses[group]
        inputs = [
            (register, *addresses[name])
            for register, name in enumerate(program.inputs)
            if name in addresses
        ]
        return program, inputs


def _make_number_records(sub_step: ReplayedSubStep) -> Int64:
    """Return int64 records of the per-parameter numbers other than step counts.

    The shape is (parameters, numbers, words). Words 0 and 1 are the address and format of the
    number; all other words are 0. `Member.numbers` has the address of a parameter's records.
    """
    columns = [column for column in sub_step.columns if column.name != STEP]
    words = replay_block.STATE_NUMBER_BYTES // 8
    records = np.zeros((len(sub_step.owners), len(columns), words), np.int64)
    for k, column in enumerate(columns):
        records[:, k, 0], records[:, k, 1] = column.pointers, KINDS[column.dtype]
    return records


def _make_members(sub_step: ReplayedSubStep, state_numbers: Int64) -> list[Member]:
    """Return a `Member` for each parameter of a rule, with the addresses of its numbers.

    The other fields are 0 or empty. `state_numbers` is the result of `_make_number_records`.
    """
    count = len(sub_step.owners)
    counts = [column for column in sub_step.columns if column.name == STEP]
    pointers = counts[0].pointers if counts else [0] * count
    kind = KINDS[counts[0].dtype] if counts else 0
    numbers = [records.ctypes.data if records.size else 0 for records in state_numbers]
    pairs = zip(pointers, numbers, strict=True)
    return [Member(pointer, kind, 0, 0, 0, records, ()) for pointer, records in pairs]


def _check_sub_step(sub_step: ReplayedSubStep) -> None:
    """Raise TypeError if the scalars of a rule depend on more than options and per-parameter
    numbers.

    TensorFlow's rules, reductions, and numbers outside of a common tensor raise, too.
    """
    are_usual = all(type(column) is Column for column in sub_step.columns)
    if not (sub_step.is_torchs and are_usual and are_numbers_in_call(sub_step.part)):
        raise TypeError("Scalars depend on more than options and numbers of parameters.")


def are_numbers_in_call(part: ParamState) -> bool:
    """Return True if native code can compute a rule's scalars and per-parameter numbers.

    Return False if the rule has `levels` or `per_optimizer`. Also return False if
    `_is_number_in_call` rejects a number other than the step count.
    """
    rule = part.rule
    has_reductions = rule.levels or rule.per_optimizer is not None
    columns = [column for column in part.columns if column.name != STEP]
    return not has_reductions and all(_is_number_in_call(part, column) for column in columns)


def _is_number_in_call(part: ParamState, column: AnyColumn) -> bool:
    """Return True if native code can update a per-parameter number other than the step count.

    The number must be float32 or float64 in a `Column`. The rule must have no passes, and no
    parameter may be empty. If torch rounds the number to the default dtype, the number and the
    default dtype must be float32.
    """
    spec = part.numbers[column.name]
    return (
        type(column) is Column
        and column.dtype in (torch.float32, torch.float64)
        and not (spec.rounds_as_tensor and (column.dtype, get_default_dtype()) != _SINGLE)
        and not part.rule.passes
        and all(param.numel() for param in part.params)
    )

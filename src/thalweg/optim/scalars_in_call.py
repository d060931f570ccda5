"""Scalars of torch-style rules, computed in the native call that replays a step.

The call reads learning rates, betas and other options from the parameter groups and the step count
of each parameter from its state, and runs the traced `prepare` of the rule on them. A scheduler, a
changed option or a parameter without a gradient thus needs no Python code in the step.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

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
    replay_kernel,
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
    """Native programs for the scalars of a replayed step, with their inputs.

    Args:
        shares: The rules of the step with their parameters.
        groups: The parameter groups of the optimizer.

    Attributes:
        keys: For each parameter the key of its scalars: the index of its group.

    Raises:
        TypeError: The scalars of a rule cannot be made in the call.
    """

    def __init__(self, shares: Sequence[ReplayedSubStep], groups: Sequence[Group]) -> None:
        self._shares, self._groups = shares, groups
        self.keys: list[Hashable] = [place for share in shares for place in share.places]
        self._scalars: list[dict[int, TorchScalars]] = []
        for share in shares:
            _check_share(share)
            scalars_by_group = {
                index: TorchScalars(share.hooks, index, share.places.index(index))
                for index in dict.fromkeys(share.places)
            }
            for scalars in scalars_by_group.values():
                scalars.check_in_call()
            self._scalars.append(scalars_by_group)
        self._programs: list[Program] = []  # whose registers their records name
        self._numbers: list[dict[str, Float64]] = []  # of each group, which the call writes
        self._addresses: list[dict[str, tuple[int, int]]] = []  # by hyperparameter
        self._state_numbers = [_state_numbers_of(share) for share in shares]

    def hold_groups(self, snapshot: GuardTable, other_options: Mapping[int, Options]) -> None:
        """Make the native call compare and read the options of all groups.

        Args:
            snapshot: Compares and reads; changes.
            other_options: The options of groups that have no parameters in the step, by index.
        """
        for index, group in enumerate(self._groups):
            readers = [scalars[index] for scalars in self._scalars if index in scalars]
            options = readers[0].options if readers else other_options[index]
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
        """Set a row of scalars per parameter in the table of each kernel."""
        for launch in (*launches.all, *launches.of_passes()):
            launch.separate_members()

    def place_programs(
        self, launches: Launches, spans: Sequence[Mapping[int, tuple[int, int, int]]]
    ) -> list[Member]:
        """Make programs compute the scalars of all launches.

        Args:
            launches: The kernels of the step.
            spans: Chunks of variables in other tables than those of the kernels.

        Returns:
            The records of the parameters.
        """
        members: list[Member] = []
        for index, (kernels, scalars) in enumerate(zip(launches.of, self._scalars, strict=True)):
            members += _members_of(self._shares[index], self._state_numbers[index])
            for launch in kernels:
                self._set_members(members, launch, scalars, spans)
        return members

    def place_pass_programs(
        self, launches: Launches, members: Sequence[Member]
    ) -> tuple[list[Member], list[ReplayedPasses]]:
        """Make programs compute the scalars of all passes and stages.

        Args:
            launches: The kernels of the step.
            members: The records of the parameters.

        Returns:
            Further records, a multiple of `members`, and the passes of each rule that has some.
        """
        pass_members: list[Member] = []
        replayed: list[ReplayedPasses] = []
        unplaced = [member._replace(program=0, spans=()) for member in members]
        first = 0
        for share, passes, scalars in zip(
            self._shares, launches.passes, self._scalars, strict=True
        ):
            for kernels in passes:
                records = [*unplaced]
                for launch in kernels:
                    self._set_members(records, launch, scalars, ())
                pass_members += records
            if passes:
                with importing:
                    from thalweg._core.replay_passes import ReplayedPasses, StageScalars
                stage_scalars = StageScalars(staged_plan_of(share.plan), share.places)
                for index, place in enumerate(stage_scalars.places):
                    stage_scalars.place_program(index, *self._program(np.float64, place, scalars))
                end = first + len(share.owners)
                staged_members = stage_scalars.members(unplaced[first:end])
                pass_members += [*unplaced[:first], *staged_members, *unplaced[end:]]
                replayed.append(ReplayedPasses(share.plan, passes, stage_scalars))
            first += len(share.owners)
        return pass_members, replayed

    def _set_members(
        self,
        members: list[Member],
        launch: Launch,
        scalars: Mapping[int, TorchScalars],
        spans: Sequence[Mapping[int, tuple[int, int, int]]],
    ) -> None:
        """Place the programs of a launch, and set them in the records of its parameters."""
        programs: list[int] = []
        for index, place in enumerate(launch.places):
            program, inputs = self._program(launch.dtype, place, scalars)
            programs.append(launch.place_program(index, program, inputs))
        for row, position in enumerate(launch.members):
            index = launch.places.index(self.keys[position])
            other_spans = [table[position] for table in spans if position in table]
            members[position] = members[position]._replace(
                program=programs[index],
                row_cell=launch.row_cell(row),
                row_size=launch.row_size,
                spans=(launch.span(row), *other_spans),
            )

    def _program(
        self, dtype: Dtype, place: Hashable, scalars: Mapping[int, TorchScalars]
    ) -> tuple[Program, list[tuple[int, int, int]]]:
        """Return (program for the scalars of a group, inputs that it loads)."""
        group = cast("int", place)
        program = scalars[group].program_for(dtype)
        self._programs.append(program)
        addresses = self._addresses[group]
        inputs = [
            (register, *addresses[name])
            for register, name in enumerate(program.inputs)
            if name in addresses
        ]
        return program, inputs


def _state_numbers_of(share: ReplayedSubStep) -> Int64:
    """Return (parameters, numbers, 3) records of the numbers beside step counts."""
    columns = [column for column in share.columns if column.name != STEP]
    words = replay_kernel.STATE_NUMBER_BYTES // 8
    records = np.zeros((len(share.owners), len(columns), words), np.int64)
    for k, column in enumerate(columns):
        records[:, k, 0], records[:, k, 1] = column.pointers, KINDS[column.dtype]
    return records


def _members_of(share: ReplayedSubStep, state_numbers: Int64) -> list[Member]:
    """Return a record for each parameter of a rule that has nothing but its own numbers."""
    count = len(share.owners)
    counts = [column for column in share.columns if column.name == STEP]
    pointers = counts[0].pointers if counts else [0] * count
    kind = KINDS[counts[0].dtype] if counts else 0
    numbers = [records.ctypes.data if records.size else 0 for records in state_numbers]
    pairs = zip(pointers, numbers, strict=True)
    return [Member(pointer, kind, 0, 0, 0, records, ()) for pointer, records in pairs]


def _check_share(share: ReplayedSubStep) -> None:
    """Raise TypeError unless scalars of a rule depend on options and numbers of parameters."""
    are_usual = all(type(column) is Column for column in share.columns)
    if not (share.is_torchs and are_usual and are_numbers_in_call(share.part)):
        raise TypeError("Scalars depend on more than options and numbers of parameters.")


def are_numbers_in_call(part: ParamState) -> bool:
    """Return True if the call can make the scalars of a rule from options, step counts and other
    numbers of parameters.
    """
    rule = part.rule
    has_reductions = rule.all_levels or rule.per_optimizer is not None or rule.is_of_lines
    columns = [column for column in part.columns if column.name != STEP]
    return not has_reductions and all(_is_number_in_call(part, column) for column in columns)


def _is_number_in_call(part: ParamState, column: AnyColumn) -> bool:
    """Return True if the call can replace a number of each parameter beside the step count.

    The call makes no number of an empty parameter. A number that torch rounds to the default dtype
    must be rounded where it is stored.
    """
    spec = part.numbers[column.name]
    return (
        type(column) is Column
        and column.dtype in (torch.float32, torch.float64)
        and not (spec.rounds_as_tensor and (column.dtype, get_default_dtype()) != _SINGLE)
        and not part.rule.passes
        and all(param.numel() for param in part.params)
    )

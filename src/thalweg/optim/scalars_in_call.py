"""Scalars of torch-style rules, made in the native call that replays a step.

The call reads learning rates, betas and other options from the parameter groups and the step count
of each parameter from its state, and runs the traced `prepare` of the rule on them. A scheduler, a
changed option or a parameter without a gradient thus needs no Python code in the step.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from thalweg._core.replay import KINDS, GuardTable, Launch, Launches, Member
from thalweg._engines.array_types import Float64
from thalweg.optim.group_options import Options
from thalweg.optim.param_scalars import STEP, Column
from thalweg.optim.replay_scalars import RATE, TorchScalars

if TYPE_CHECKING:
    from thalweg._core.param_groups import Group
    from thalweg._core.scalar_tracing import Program
    from thalweg.optim.param_state import ParamState
    from thalweg.optim.replay_substep import ReplayedSubStep

_FLOAT64 = KINDS[torch.float64]


class ScalarsInCall:
    """Programs that make the scalars of a replayed step, and what they read.

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

    def hold_groups(self, snapshot: GuardTable, other_options: Mapping[int, Options]) -> None:
        """Have the call compare and read the options of all groups.

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
    def give_members_rows(launches: Launches) -> None:
        """Give each parameter a row of scalars in the table of its kernel."""
        for launch in launches.all:
            launch.separate_members()

    def place_programs(
        self, launches: Launches, spans: Sequence[Mapping[int, tuple[int, int, int]]]
    ) -> list[Member]:
        """Have programs make the scalars of all launches.

        Args:
            launches: The kernels of the step.
            spans: Chunks of variables in other tables than those of the kernels.

        Returns:
            The records of the parameters.
        """
        members: list[Member] = []
        for share, kernels, scalars in zip(self._shares, launches.of, self._scalars, strict=True):
            members += _step_counts_of(share)
            for launch in kernels:
                programs = [self._program(launch, k, scalars) for k in range(len(launch.places))]
                for row, position in enumerate(launch.members):
                    index = launch.places.index(self.keys[position])
                    other_spans = [table[position] for table in spans if position in table]
                    members[position] = members[position]._replace(
                        program=programs[index],
                        row_cell=launch.row_cell(row),
                        row_size=launch.row_size,
                        spans=(launch.span(row), *other_spans),
                    )
        return members

    def _program(self, launch: Launch, index: int, scalars: Mapping[int, TorchScalars]) -> int:
        """Place the program of a launch for one group; return the address of its record."""
        place: Any = launch.places[index]
        program = scalars[place].program_for(launch.dtype)
        self._programs.append(program)
        addresses = self._addresses[place]
        inputs = [
            (register, *addresses[name])
            for register, name in enumerate(program.inputs)
            if name != STEP
        ]
        return launch.place_program(index, program, inputs)


def _step_counts_of(share: ReplayedSubStep) -> list[Member]:
    """Return a record for each parameter of a rule that has nothing but its step count."""
    if not share.columns:
        return [Member(0, 0, 0, 0, 0, ())] * len(share.owners)
    column = share.columns[0]
    return [Member(address, KINDS[column.dtype], 0, 0, 0, ()) for address in column.pointers]


def _check_share(share: ReplayedSubStep) -> None:
    """Raise TypeError unless the parameters of a rule have no scalar state but step counts."""
    are_counts = all(type(column) is Column for column in share.columns)
    if not (share.is_torchs and are_counts and has_step_counts_alone(share.part)):
        raise TypeError("Scalars depend on more than options and step counts.")


def has_step_counts_alone(part: ParamState) -> bool:
    """Return whether scalars of a rule depend on options and step counts, and on nothing else."""
    rule = part.rule
    has_reductions = rule.per_variable is not None or rule.per_optimizer is not None or rule.levels
    return part.numbers.keys() <= {STEP} and not has_reductions

"""Computations of a rule before its update, in a replayed step: passes and matrix stages.

A pass is a kernel that computes values of each element before the update. A matrix stage is a
function of matrices, such as an orthogonalization.

The native call checks all guards and runs the kernels of a pass, which write only memory of the
plan. A stage follows in torch's functions. Another native call then checks the guards again and
runs the update.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from operator import call, not_
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg._core.plan_cache import CachedPlan
from thalweg._core.replay import GuardTable, Launch, Member, replay_block, staged_plan_of
from thalweg._core.replay_reductions import AddressCopies, PlaceScalars
from thalweg._engines.cpu.launch import is_serial
from thalweg._engines.protocol import Call, Columns

if TYPE_CHECKING:
    from thalweg._engines.staged_step import StagedStep


class StageScalars(PlaceScalars):
    """Scalars for the stages of a rule, computed in the native call of a replayed step.

    Args:
        staged_step: The plan of the rule.
        places: For each variable of the rule the key of its place.
    """

    def __init__(self, staged_step: StagedStep, places: Sequence[Hashable]) -> None:
        super().__init__(staged_step.stage_scalars, places)
        self._dtypes = staged_step.dtypes

    def members(self, members: Sequence[Member]) -> list[Member]:
        """Return copies of `members` by which native code writes the scalars of stages here.

        Args:
            members: For each variable of the rule its `Member`, the addresses of the variable's
                step count and of the scalars of its update.
        """
        return [
            member._replace(
                program=self._records[place].ctypes.data,
                row_cell=self.row_cell(index),
                row_size=self.row_size,
            )
            for index, (member, place) in enumerate(zip(members, self._place_of, strict=True))
        ]

    def columns(self) -> Columns:
        """Return the scalars that the last native call has computed, as `Columns`.

        `shared` has all scalars of the first variable. `by_variable` has a vector over the
        variables for each scalar that differs between variables.
        """
        if len(self._rows) == 1 == self.row_counts[0]:
            shared, by_variable = dict(zip(self.names, self._rows[0, 0].tolist(), strict=True)), {}
        else:
            values = self.rows()
            shared = dict(zip(self.names, values[0].tolist(), strict=True))
            by_variable = {
                name: values[:, column]
                for column, name in enumerate(self.names)
                if (values[:, column] != values[0, column]).any()
            }
        return Columns(dict.fromkeys(self._dtypes, shared), by_variable)


class ReplayedPasses:
    """Passes and stages of a rule in a replayed step.

    Args:
        launches: The kernels of each pass.
        cells: As of `Launches`.
        scalars: The scalars of stages.
    """

    def __init__(
        self,
        cached_plan: CachedPlan,
        launches: Sequence[Sequence[Launch]],
        cells: Sequence[int],
        scalars: StageScalars,
    ) -> None:
        self._plan, self._slots = staged_plan_of(cached_plan), cached_plan.shaped_slots
        self._launches, self._scalars = launches, scalars
        # The first launch of a pass copies the addresses of gradients from the update.
        self._copies = [
            AddressCopies(
                (cells[member], cell)
                for launch in pass_launches
                for member, cell in zip(launch.members, launch.cells(), strict=True)
            )
            for pass_launches in launches
        ]
        self._records = [
            np.array([launch.record() for launch in (copies, *pass_launches)], np.int64)
            for copies, pass_launches in zip(self._copies, launches, strict=True)
        ]

    def run(
        self, guards: GuardTable, step_count: int, flags: int, pairs: list[Any] | None = None
    ) -> tuple[int, list[Call]]:
        """Check the guards, and run the passes and stages. Variables and slots are not written.

        Args:
            guards: The guard table of the step, which is checked before each pass.
            step_count: The number of steps replayed so far, or `ANY_STEP`.
            flags: Flags of `replay_block`, or 0.
            pairs: Optional. The pairs of gradient and variable; None for the gradients of the
                parameters.

        Returns:
            0 and a list of C functions to call once after the update, which write new values of
            slots. If a guard failed, its constant and [].
        """

        def run_pass(index: int) -> int:
            records = self._records[index]
            for record, launch in zip(records[1:], self._launches[index], strict=True):
                if not is_serial(launch.elements):
                    record[2:] = launch.threads()
            guards.set_pass(records)
            return guards.replay(pairs, step_count, replay_block.RUN_PASS, (), flags)

        status, writes = self._plan.replay_passes(run_pass, self._scalars.columns, self._slots)
        # `GuardTable.replay` stops at a result that is not false, and these return lists.
        return status, [partial(any, map(not_, map(call, writes)))] if writes else []

"""The most common of the steps that are taken again: one rule, and nothing around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thalweg.core.groups import Group
from thalweg.core.steady import ERRORS, Launches, Snapshot
from thalweg.optim.columns import STEP, Column
from thalweg.optim.steady_scalars import TorchScalars

if TYPE_CHECKING:
    from thalweg.core.symbols import Program
    from thalweg.optim.steady_share import SteadyShare


class PlainStep:
    """The step of parameters of which only groups differ, not what is counted of them.

    Args:
        share: What is updated.
        scalars: Those of each group.
        launches: The kernels.
        found: What is compared.
    """

    def __init__(
        self,
        share: SteadyShare,
        scalars: Sequence[TorchScalars],
        launches: Launches,
        found: Snapshot,
    ) -> None:
        self._part, self._columns, self._scalars = share.part, share.columns, scalars
        self._column: Column = share.columns[0]
        self._launches, self._kernels, self._snapshot = launches, launches.all, found
        self._has_threads = launches.may_have_threads
        self._programs = self._find_programs()
        self._rates: list[float | None] = [None for _ in scalars]

    def _find_programs(self) -> list[list[Program]] | None:
        """For each group what makes the scalars of its kernels; None if Python makes any."""
        made: list[list[Program]] = []
        placed: list[tuple[Program, Any]] = []
        for each in self._scalars:
            own: list[Program] = []
            for kernel in self._kernels:
                if each.place in kernel.places:
                    program = None if kernel.measures else each.program_for(kernel.dtype)
                    if program is None:
                        return None
                    own.append(program)
                    placed.append((program, kernel.program(kernel.places.index(each.place))))
            made.append(own)
        for program, where in placed:
            program.place(*where)
        self._records = [record for _, (record, *_) in placed]
        return made

    def leave_scalars(self) -> None:
        """Have others set the scalars of kernels from now on."""
        if self._programs is not None:
            for record in self._records:
                record[:] = 0  # one of zeros makes none
            self._programs = None

    @staticmethod
    def of(share: SteadyShare, launches: Launches, found: Snapshot) -> PlainStep | None:
        """The step of a share, if it is one."""
        scalars = share.scalars_of_groups()
        if not scalars or len(share.columns) != 1 or share.columns[0].name != STEP:
            return None
        return PlainStep(share, scalars, launches, found)

    def take(self, groups: Sequence[Group]) -> int | None:
        """Take it, if all is as it was.

        Args:
            groups: Those of the optimizer.

        Returns:
            0 if it was taken, else what is not as it was; None if it is to be looked at by parts.
        """
        found, column = self._snapshot, self._column
        begun = found.count.value
        # Else a careful step was planned anew, or others have written a number: that may have been
        # read by a step that was refused.
        if self._part.columns is not self._columns or not column.is_known or column.common is None:
            return None
        step = column.common + 1
        for each in self._scalars:
            group = groups[each.place]
            if not (each.options.hold(group) or each.hold(group)):
                return None
        try:
            if self._programs is None:
                made = {each.place: each.made(self._columns) for each in self._scalars}
                for kernel in self._kernels:
                    kernel.set_scalars(made)
            else:
                self._give(step, self._programs)
            found.set_number(0, step, column.common)
        except ERRORS:  # the careful way says it
            return None
        if self._has_threads:
            self._launches.set_threads(found)
        other = found.take(None, begun)
        if not (other or column.counted(step)):
            column.wrote([step])
        return other

    def _give(self, step: float, programs: Sequence[Sequence[Program]]) -> None:
        """Say the number of the step, and rates that are others than before."""
        for k, own in enumerate(programs):
            rate = self._scalars[k].rate
            if rate is not self._rates[k]:
                for program in own:
                    program.give((rate,))
                self._rates[k] = rate
            for program in own:
                program.set(0, step)

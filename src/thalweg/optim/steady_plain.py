"""The most common of the steps that are taken again: one rule, and nothing around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.core.groups import Group
from thalweg.core.steady import ERRORS, Launches, Snapshot
from thalweg.optim.columns import STEP, Column
from thalweg.optim.steady_scalars import TorchScalars

if TYPE_CHECKING:
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
        # Else a careful step was planned anew.
        if self._part.columns is not self._columns or not column.is_known:
            return None
        step, given = column.common + 1, {}
        try:
            for each in self._scalars:
                place = each.place
                if not each.hold(groups[place]):
                    return None
                given[place] = each.made(self._columns)
            for each in self._kernels:
                each.set_scalars(given)
            found.set_number(0, step)
        except ERRORS:  # the careful way says it
            return None
        self._launches.set_threads(found)
        other = found.take(None, begun)
        if not other:
            column.wrote([step])
        return other

"""CPU updates of groups that also compute diagnostics; see `thalweg._engines.diagnostics`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from thalweg._engines.array_types import Float64
from thalweg._engines.codegen import Update
from thalweg._engines.cpu.codegen_diagnostics import can_diagnose, generate_diagnosed
from thalweg._engines.cpu.launch import Compiled
from thalweg._engines.cpu.reductions import Leaves
from thalweg._engines.cpu.work_table import Table
from thalweg._engines.diagnostics import MEASURED, PEAKS, find_momentum
from thalweg._engines.kernel_streams import streams_of
from thalweg._engines.protocol import Call, Columns, Stages, StepRequest

_OF_MOMENTUM = ("product", "momentum", "agreement")


class DiagnosedUpdate:
    """Update of a group of variables that also computes diagnostics.

    Args:
        group: A `Group` of this engine, bound to the gradients of the step.
        sizes: The number of elements of each variable.
        kernel: The kernel from `diagnosed_kernel`.
        has_momentum: True if the kernel measures a momentum.

    Attributes:
        members: Positions of the variables in the step.
    """

    def __init__(self, group: Any, sizes: list[int], kernel: Compiled, has_momentum: bool) -> None:
        self._group, self._kernel, self._has_momentum = group, kernel, has_momentum
        self.members: list[int] = group.members
        self._leaves = Leaves(sizes)
        self._leaf_results = np.zeros((len(self._leaves.chunks), len(MEASURED)), np.float64)
        table, leaves = group.table, self._leaves
        self._table = Table(table.base, leaves.chunks, leaves.bounds, table.scalar_row)

    def make_calls(self, columns: Columns) -> list[Call]:
        """Return [a call that updates the variables and measures the diagnostics for `combine`]."""
        group, results = self._group, self._leaf_results.ctypes.data
        group.set_scalars(columns.shared[group.dtype], columns.by_variable)
        return [self._kernel.bind_table(self._table, group.scalars, group.flush, results)]

    def combine(self) -> tuple[Float64, npt.NDArray[np.bool_]]:
        """Return the diagnostics that the call from `make_calls` has measured.

        Returns:
            A float64 array (members, len(MEASURED)), and a bool mask of equal shape, which is False
            for measurements of a missing momentum.
        """
        leaf_results = self._leaves.combine(self._leaf_results)
        counts = self._leaves.counts
        with np.errstate(all="ignore"):
            # Each variable of a group has elements; `reduceat` cannot reduce an empty one.
            largest = np.maximum.reduceat(self._leaf_results, np.cumsum(counts) - counts)
        for name in PEAKS:
            leaf_results[:, MEASURED.index(name)] = largest[:, MEASURED.index(name)]
        measured_mask = [self._has_momentum or name not in _OF_MOMENTUM for name in MEASURED]
        return leaf_results, np.tile(measured_mask, (len(leaf_results), 1))


def make_diagnosed_updates(
    groups: Sequence[Any], request: StepRequest, measured_stages: Stages
) -> dict[int, DiagnosedUpdate]:
    """Return {id(group): `DiagnosedUpdate`}: updates with diagnostics, in place of groups.

    Groups with vectors over rows or columns, encoded slots, random rounding or float64 are missing.

    Args:
        measured_stages: The stages applied to gradients before they are measured.
    """
    updates: dict[int, DiagnosedUpdate] = {}
    position, sign = find_momentum(request.rule)
    momentum = None if position is None else position + 2
    for group in groups:
        streams = streams_of(request, group.members)
        update = streams.describe_update(request)
        if not group.kernel.vectors and can_diagnose(update):
            kernel = diagnosed_kernel(update, len(measured_stages), momentum, sign)
            updates[id(group)] = DiagnosedUpdate(group, streams.sizes, kernel, momentum is not None)
    return updates


@cache
def diagnosed_kernel(update: Update, stage_count: int, momentum: int | None, sign: int) -> Compiled:
    """Return the compiled kernel of `generate_diagnosed`."""
    return Compiled(generate_diagnosed(update, stage_count, momentum, sign), np.float32)

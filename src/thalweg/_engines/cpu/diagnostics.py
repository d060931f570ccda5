"""CPU updates of groups that also compute diagnostics; see `thalweg._engines.diagnostics`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from thalweg._engines.array_types import Float64
from thalweg._engines.codegen import Update
from thalweg._engines.cpu import launch
from thalweg._engines.cpu.codegen import STORAGE
from thalweg._engines.cpu.codegen_diagnostics import can_diagnose, generate_diagnosed
from thalweg._engines.cpu.launch import Compiled
from thalweg._engines.cpu.reductions import Leaves
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
        self._block = np.zeros(0, np.int64)

    def make_calls(self, columns: Columns) -> list[Call]:
        """Return [a call that updates the variables and measures the diagnostics for `combine`]."""
        group, leaves = self._group, self._leaves
        group.set_scalars(columns.shared[group.dtype], columns.by_variable)
        arrays = (leaves.bounds, leaves.chunks, group.table.base, group.table.scalar_row)
        addresses = [array.ctypes.data for array in (*arrays, group.scalars, self._leaf_results)]
        slices = len(leaves.bounds) - 1
        self._block = np.array([0, slices, group.flush, *addresses], np.int64)
        threads = launch.threads_for(slices, leaves.elements)
        return [self._kernel.bind_argument(self._block.ctypes.data, threads, leaves.elements)]

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
    """Return {id of a group: update with diagnostics, in place of the group}.

    Groups with vectors over rows or columns, encoded slots, random rounding or float64 are left
    out.

    Args:
        measured_stages: The stages applied to gradients before they are measured.
    """
    updates: dict[int, DiagnosedUpdate] = {}
    for group in groups:
        streams = streams_of(request, group.members)
        if group.kernel.vectors or streams.draws or not STORAGE.keys() >= {*streams.names}:
            continue
        position, sign = find_momentum(request.rule)
        stream = None if position is None else position + 2
        kernel = diagnosed_kernel(
            streams.describe_update(request), len(measured_stages), stream, sign
        )
        if kernel is not None:
            updates[id(group)] = DiagnosedUpdate(group, streams.sizes, kernel, position is not None)
    return updates


@cache
def diagnosed_kernel(
    update: Update, stage_count: int, momentum: int | None, sign: int
) -> Compiled | None:
    """Return the compiled kernel of `generate_diagnosed`; None if `can_diagnose` is False."""
    if not can_diagnose(update):
        return None
    return Compiled(generate_diagnosed(update, stage_count, momentum, sign), np.float32)

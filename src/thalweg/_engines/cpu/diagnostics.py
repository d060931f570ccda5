"""Updates on the CPU that measure themselves, in place of those of groups; see `diagnostics`."""

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
from thalweg._engines.diagnostics import MEASURED, PEAKS, momentum_of
from thalweg._engines.kernel_streams import streams_of
from thalweg._engines.protocol import Call, Columns, Stages, StepRequest
from thalweg.formula import Formula

_OF_MOMENTUM = ("product", "momentum", "agreement")


class DiagnosedUpdate:
    """The update of a group of variables that measures itself.

    Args:
        group: A `Group` of this engine, aimed at the gradients of the step.
        sizes: Elements of each of its variables.
        kernel: Of `diagnosed_kernel`.
        has_momentum: Whether the kernel measures a momentum.

    Attributes:
        members: Positions of the variables in the step.
    """

    def __init__(self, group: Any, sizes: list[int], kernel: Compiled, has_momentum: bool) -> None:
        self._group, self._kernel, self._has_momentum = group, kernel, has_momentum
        self.members: list[int] = group.members
        self._leaves = Leaves(sizes)
        self._found = np.zeros((len(self._leaves.chunks), len(MEASURED)), np.float64)
        self._block = np.zeros(0, np.int64)

    def make_calls(self, columns: Columns) -> list[Call]:
        """What updates the variables, as functions in C; see `Group`."""
        group, leaves = self._group, self._leaves
        group.set_scalars(columns.shared[group.dtype], columns.separate)
        arrays = (leaves.bounds, leaves.chunks, group.table.base, group.table.scalar_row)
        given = [each.ctypes.data for each in (*arrays, group.scalars, self._found)]
        slices = len(leaves.bounds) - 1
        self._block = np.array([0, slices, group.flush, *given], np.int64)
        threads = launch.threads_for(slices, leaves.elements)
        return [self._kernel.bind_argument(self._block.ctypes.data, threads)]

    def combine(self) -> tuple[Float64, npt.NDArray[np.bool_]]:
        """(members, measured) float64, and which of them were measured; the step is written."""
        made = self._leaves.combine(self._found)
        counts = self._leaves.counts
        with np.errstate(all="ignore"):
            largest = np.maximum.reduceat(self._found, np.cumsum(counts) - counts)
        for name in PEAKS:
            made[:, MEASURED.index(name)] = largest[:, MEASURED.index(name)]
        known = [self._has_momentum or name not in _OF_MOMENTUM for name in MEASURED]
        return made, np.tile(known, (len(made), 1))


def diagnosed_updates(
    groups: Sequence[Any], asked: StepRequest, first: Stages
) -> dict[int, DiagnosedUpdate]:
    """Updates that measure themselves, by `id` of the groups whose place they take.

    Elements that see rows and columns, that are encoded or rounded by random bits, and float64 have
    none.

    Args:
        groups: Those of a plan.
        asked: What the plan was made for.
        first: The stages that the gradients go through before they are measured.
    """
    made: dict[int, DiagnosedUpdate] = {}
    for group in groups:
        own = streams_of(asked, group.members)
        if group.kernel.vectors or own.draws or not STORAGE.keys() >= {*own.names}:
            continue
        place, sign = momentum_of(asked.rule)
        stream = None if place is None else place + 2
        kernel = diagnosed_kernel(
            asked.rule.update,
            asked.stages,
            own.names,
            asked.rule.before,
            own.copied,
            own.from_copy,
            len(first),
            stream,
            sign,
        )
        if kernel is not None:
            made[id(group)] = DiagnosedUpdate(group, own.sizes, kernel, place is not None)
    return made


@cache
def diagnosed_kernel(
    formula: Formula,
    stages: tuple[Formula, ...],
    storage: tuple[str, ...],
    before: Formula | None,
    copy: bool,
    from_copy: bool,
    first: int,
    momentum: int | None,
    sign: int,
) -> Compiled | None:
    """The compiled kernel of `generate_diagnosed`; None if there is none for these types."""
    update = Update(formula, storage, stages, True, (), before, copy, from_copy)
    if not can_diagnose(update):
        return None
    return Compiled(generate_diagnosed(update, first, momentum, sign), np.float32)

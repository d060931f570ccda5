"""Measurements of a step, and their conversion to a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor

from thalweg._base.async_fetch import brought
from thalweg._base.locks import importing
from thalweg._core.dtensor import any_on_mesh
from thalweg._core.gradient_transforms import GradientTransforms, before_norms
from thalweg._engines.cpu.kernel_group import Group as CpuGroup
from thalweg._engines.dense_plan import DensePlan
from thalweg._engines.diagnostics import MEASURED, VariableDiagnostics, combine_measurements
from thalweg._engines.protocol import Columns, Stages, StepPlan, StepRequest, WriteRound
from thalweg.diagnostics.table import Flags, Parameters, Table, columns_of, flags_of

if TYPE_CHECKING:
    from thalweg._core.gradient_stats import GradientStats
    from thalweg._engines.cpu.diagnostics import DiagnosedUpdate


# Function that returns a value and may wait for a device.
Fetch = Callable[[], Any]


class _VariableSet(NamedTuple):
    """Measurements of some variables of one rule, before the variables are written.

    Attributes:
        finish: `finish()`, called after the writes, returns (reductions, flags of measured
            reductions). Both have shape (parameters, `MEASURED`). Reductions are float64, in NumPy
            or on a device.
        clip: `clip()` returns the factor with which clipping multiplied the gradients.
    """

    params: list[Tensor]
    finish: Callable[[], tuple[Any, Flags]]
    clip: Fetch


# Measurements of some variables after the writes: the parameters; a function that returns float64
# reductions of shape (parameters, `MEASURED`); flags of the measured reductions; and `clip` of
# `_VariableSet`.
Measurements = tuple[list[Tensor], Fetch, Flags, Fetch]


class StepWatch:
    """Measurements of the current step."""

    def __init__(self) -> None:
        self._variable_sets: list[_VariableSet] = []
        self.params: list[Tensor] = []
        # Distribution of the parameters over ranks.
        self._sharing: Any = None

    @property
    def is_begun(self) -> bool:
        """True if any variable is measured."""
        return bool(self._variable_sets)

    @property
    def is_there(self) -> bool:
        """True if a parameter is on a device other than the CPU."""
        return not all(param.is_cpu for param in self.params)

    def owners_of(self, hooks: Any, request: StepRequest) -> list[Tensor]:
        """Return the parameters that the table lists for the variables of a request."""
        return hooks.owners_of(request.variables)

    def begin(
        self,
        hooks: Any,
        request: StepRequest,
        plan: StepPlan,
        columns: Columns,
        transforms: GradientTransforms,
        stats: GradientStats | None,
        rounds: Iterator[WriteRound],
    ) -> Iterator[WriteRound]:
        """Measure the variables of one rule before the step writes to them.

        Args:
            hooks: The adapter of the optimizer, which maps variables to parameters.
            request: The variables, gradients and slots of the rule.
            plan: The kernel calls of the step.
            columns: The scalars of the step.
            stats: The statistics of the gradients; None if not computed.
            rounds: The kernel calls that write the variables of the rule.

        Returns:
            `rounds`, or in its place calls of CPU kernels that measure while they write.
        """
        stages, owner_params = before_norms(transforms), self.owners_of(hooks, request)
        self.params += owner_params
        if hooks.sharing is not None:
            self._sharing, request = hooks.sharing, hooks.sharing.share_out(request)
        clip = 1.0 if stats is None else stats.clip_scale
        fetch = _fetch(clip)
        remaining = list(range(len(owner_params)))
        if isinstance(plan, DensePlan) and all(isinstance(x, CpuGroup) for x in plan.groups):
            diagnosed = _updates_of(plan, request, stages)
            for update in diagnosed.values():
                params = [owner_params[index] for index in update.members]
                self._variable_sets.append(_VariableSet(params, update.combine, fetch))
            fused_indices = {index for update in diagnosed.values() for index in update.members}
            remaining = [index for index in remaining if index not in fused_indices]
            writers = [diagnosed.get(id(group), group) for group in plan.groups]
            if diagnosed:
                calls = [call for writer in writers for call in writer.make_calls(columns)]
                calls.append(plan.mark_written)
                members = range(len(owner_params))
                rounds = iter([WriteRound(members, calls, plan.memory_checks())])
        if remaining:
            measurements = [
                VariableDiagnostics(request, index, columns, stages) for index in remaining
            ]
            params = [owner_params[index] for index in remaining]
            self._variable_sets.append(
                _VariableSet(params, partial(_combine_all, measurements), fetch)
            )
        return rounds

    def finish(self) -> list[Measurements]:
        """Return `Measurements` of each set of variables; call this after the writes of the step.

        With DTensors, measurements are reduced over ranks: all ranks must call this method.
        """
        if self._sharing is not None and any_on_mesh(self.params):
            reductions = self._finish_with_ranks()
        else:
            reductions = [variable_set.finish() for variable_set in self._variable_sets]
        return [
            (variable_set.params, _fetch(numbers), flags, variable_set.clip)
            for variable_set, (numbers, flags) in zip(self._variable_sets, reductions, strict=True)
        ]

    def _finish_with_ranks(self) -> list[tuple[Any, Flags]]:
        """Return [(reductions over all ranks, flags)], one pair per variable set."""
        try:
            local_sums = [
                (variable_set.params, *variable_set.finish())
                for variable_set in self._variable_sets
            ]
        except Exception:
            # The other ranks wait for this reduction.
            self._sharing.diagnostics_of_whole(self.params, [])
            raise
        totals = self._sharing.diagnostics_of_whole(self.params, local_sums)
        return [(numbers, flags) for _, numbers, flags in totals]


# Measuring updates by plan, for later steps with the same plan.
_update_cache: WeakKeyDictionary[DensePlan, tuple[Stages, dict[int, DiagnosedUpdate]]] = (
    WeakKeyDictionary()
)


def _updates_of(
    plan: DensePlan, request: StepRequest, stages: Stages
) -> dict[int, DiagnosedUpdate]:
    """Return {id(group): update that also measures} for the groups of variables in a plan.

    A group is updated by one kernel call, which the new update replaces. Groups that no kernel can
    measure are missing. The dict is cached until `stages`, the gradient transforms before the
    measurement, change; do not modify it.
    """
    with importing:
        from thalweg._engines.cpu.diagnostics import make_diagnosed_updates
    cached = _update_cache.get(plan)
    if cached is None or cached[0] != stages:
        cached = _update_cache[plan] = stages, make_diagnosed_updates(plan.groups, request, stages)
    return cached[1]


def _combine_all(measurements: Sequence[VariableDiagnostics]) -> tuple[Any, Flags]:
    """Return (reductions, flags of measured reductions) of all variables."""
    reductions = [measurement.finish() for measurement in measurements]
    flags = np.array([[name in values for name in MEASURED] for values in reductions])
    return combine_measurements(
        reductions, [measurement.size for measurement in measurements]
    ), flags


def _fetch(value: Any) -> Fetch:
    """Return a function that returns `value` on the host. Start the copy of a tensor now."""
    return fetched(value) if isinstance(value, Tensor) else lambda: value


def fetched(tensor: Tensor) -> Callable[[], Any]:
    """Start a copy to the host. Return a function that waits and returns the NumPy array."""
    (array,), wait = brought([tensor])

    def read() -> Any:
        """Wait for the copy and return the NumPy array."""
        wait()
        return array

    return read


def table_of(
    measurements: Sequence[Measurements],
    rows: Mapping[int, int],
    parameters: Parameters,
    step: int,
    fetch_flag: Callable[[], Any] | None,
) -> Table | None:
    """Return the table of a step; None if the device has skipped the step.

    Args:
        measurements: The measurements of all rules.
        rows: {id(parameter): row in the table}. Measured numbers of other rows are NaN.
        fetch_flag: Optional. `fetch_flag()` returns False if the device has skipped the step.
    """
    if fetch_flag is not None and not fetch_flag():
        return None
    count = len(parameters.names)
    reductions = np.full((count, len(MEASURED)), np.nan)
    flags = np.zeros((count, len(MEASURED)), bool)
    clip, sizes = np.full(count, np.nan), np.array(parameters.sizes, np.float64)
    for params, fetch_numbers, set_flags, fetch_clip in measurements:
        indices = [rows[id(param)] for param in params]
        reductions[indices], flags[indices] = fetch_numbers(), set_flags
        clip[indices] = fetch_clip()
        # A complex element has two numbers.
        sizes[indices] *= [1 + param.is_complex() for param in params]
    columns = columns_of(reductions, sizes, clip)
    return Table(parameters, step, columns, flags_of(flags))

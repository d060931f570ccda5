"""Measurements of a step, and the table that is made of them."""

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
from thalweg._engines.diagnostics import MEASURED, VariableDiagnostics, combined
from thalweg._engines.protocol import Columns, Stages, StepPlan, StepRequest, WriteRound
from thalweg.diagnostics.table import Flags, Parameters, Table, columns_of, flags_of

if TYPE_CHECKING:
    from thalweg._core.gradient_stats import GradientStats
    from thalweg._engines.cpu.diagnostics import DiagnosedUpdate


Fetch = Callable[[], Any]  # gives what a device may have


class _Share(NamedTuple):
    """What is measured of variables of one rule.

    Attributes:
        params: The parameters.
        finish: Gives (parameters, measured) float64, in NumPy or on a device, and which of them
            were measured; the step is written by then.
        clip: Gives what clipping multiplied the gradients by.
    """

    params: list[Tensor]
    finish: Callable[[], tuple[Any, Flags]]
    clip: Fetch


class MeasuredVariables(NamedTuple):
    """Measurements of variables of one rule.

    Attributes:
        params: The parameters.
        numbers: Returns (parameters, measured) float64, and may wait for a device.
        known: Which of them were measured.
        clip: Returns the factor with which clipping multiplied the gradients.
    """

    params: list[Tensor]
    numbers: Fetch
    known: Flags
    clip: Fetch


class StepWatch:
    """Measurements of the step under way."""

    def __init__(self) -> None:
        self._shares: list[_Share] = []
        self.params: list[Tensor] = []  # in the order of the step
        self._sharing: Any = None  # how ranks have parts of them

    @property
    def is_begun(self) -> bool:
        """True if anything is measured."""
        return bool(self._shares)

    @property
    def is_there(self) -> bool:
        """True if the numbers are on a device."""
        return any(not param.is_cpu for each in self._shares for param in each.params)

    def owners_of(self, hooks: Any, asked: StepRequest) -> list[Tensor]:
        """Return the parameters that a table is to have in place of a step's variables."""
        return hooks.owners_of(asked.variables)

    def begin(
        self,
        hooks: Any,
        asked: StepRequest,
        ready: StepPlan,
        columns: Columns,
        how: GradientTransforms,
        known: GradientStats | None,
        rounds: Iterator[WriteRound],
    ) -> Iterator[WriteRound]:
        """Measure what is there before the writes of a rule; nothing is written yet.

        Args:
            hooks: What says which parameter a variable stands for.
            asked: What the rule updates.
            ready: The same, ready to be taken.
            columns: The scalars.
            how: What happens to the gradients.
            known: What is known of them, if something does.
            rounds: The writes.

        Returns:
            The writes, which measure what they write, where there are kernels for that.
        """
        stages, owners = before_norms(how), self.owners_of(hooks, asked)
        self.params += owners
        if hooks.sharing is not None:
            self._sharing, asked = hooks.sharing, hooks.sharing.share_out(asked)
        clip = 1.0 if known is None else known.clip_scale
        fetch = _fetch(clip)
        left = list(range(len(owners)))
        if isinstance(ready, DensePlan) and all(isinstance(x, CpuGroup) for x in ready.groups):
            diagnosed = _updates_of(ready, asked, stages)
            for own in diagnosed.values():
                params = [owners[index] for index in own.members]
                self._shares.append(_Share(params, own.combine, fetch))
            told = {index for own in diagnosed.values() for index in own.members}
            left = [index for index in left if index not in told]
            writers = [diagnosed.get(id(group), group) for group in ready.groups]
            if diagnosed:
                calls = [call for each in writers for call in each.make_calls(columns)]
                rounds = iter([WriteRound(range(len(owners)), [*calls, ready.mark_written])])
        if left:
            parts = [VariableDiagnostics(asked, index, columns, stages) for index in left]
            params = [owners[index] for index in left]
            self._shares.append(_Share(params, partial(_of_variables, parts), fetch))
        return rounds

    def finish(self) -> list[MeasuredVariables]:
        """Return the measurements after the step has been written.

        Where ranks have parts of a parameter, all of them call this, and add up their numbers.
        """
        if self._sharing is not None and any_on_mesh(self.params):
            found = self._finish_with_ranks()
        else:
            found = [each.finish() for each in self._shares]
        return [
            MeasuredVariables(each.params, _fetch(numbers), known, each.clip)
            for each, (numbers, known) in zip(self._shares, found, strict=True)
        ]

    def _finish_with_ranks(self) -> list[tuple[Any, Flags]]:
        try:
            parts = [(each.params, *each.finish()) for each in self._shares]
        except Exception:
            self._sharing.diagnostics_of_whole(self.params, [])  # for which the others wait
            raise
        whole = self._sharing.diagnostics_of_whole(self.params, parts)
        return [(numbers, known) for _, numbers, known in whole]


# Of plans that other steps repeat; each lives as long as its plan.
_kept: WeakKeyDictionary[DensePlan, tuple[Stages, dict[int, DiagnosedUpdate]]] = WeakKeyDictionary()


def _updates_of(plan: DensePlan, asked: StepRequest, stages: Stages) -> dict[int, DiagnosedUpdate]:
    """The updates that measure what they write, by `id` of the groups whose place they take."""
    with importing:
        from thalweg._engines.cpu.diagnostics import diagnosed_updates
    kept = _kept.get(plan)
    if kept is None or kept[0] != stages:
        kept = _kept[plan] = stages, diagnosed_updates(plan.groups, asked, stages)
    return kept[1]


def _of_variables(parts: Sequence[VariableDiagnostics]) -> tuple[Any, Flags]:
    found = [each.finish() for each in parts]
    known = np.array([[name in own for name in MEASURED] for own in found])
    return combined(found, [each.size for each in parts]), known


def _fetch(value: Any) -> Fetch:
    return fetched(value) if isinstance(value, Tensor) else partial(_same, value)


def _same(value: Any) -> Any:
    return value


def fetched(tensor: Tensor) -> Callable[[], Any]:
    """Begin to copy a tensor to the host, and return a function that waits and returns a NumPy
    array.
    """
    (own,), wait = brought([tensor])

    def read() -> Any:
        wait()
        return own

    return read


def table_of(
    given: Sequence[MeasuredVariables],
    rows: Mapping[int, int],
    parameters: Parameters,
    step: int,
    decided: Callable[[], Any] | None,
) -> Table | None:
    """Return the table; None if a device left the step out."""
    if decided is not None and not decided():
        return None
    count = len(parameters.names)
    found, known = np.full((count, len(MEASURED)), np.nan), np.zeros((count, len(MEASURED)), bool)
    clip, sizes = np.full(count, np.nan), np.array(parameters.sizes, np.float64)
    for share in given:
        own = [rows[id(param)] for param in share.params]
        found[own], known[own], clip[own] = share.numbers(), share.known, share.clip()
        sizes[own] *= [1 + param.is_complex() for param in share.params]  # two numbers each
    columns = columns_of(found, sizes, clip)
    return Table(parameters, step, columns, flags_of(known))

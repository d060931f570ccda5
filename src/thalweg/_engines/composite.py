"""A step in several parts: dense and sparse, of one engine or of two, in one round or in more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import Tensor

from thalweg._engines import layout
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.protocol import (
    Call,
    Columns,
    Dtype,
    Formulas,
    Stages,
    StepRequest,
    WriteRound,
)

if TYPE_CHECKING:
    from thalweg._base.rule_passes import Measure


class Part(Protocol):
    """What updates some of the variables of a step, each once.

    Attributes:
        written: The tensors it writes.
    """

    @property
    def written(self) -> Sequence[Tensor]: ...

    def try_rebind(self, request: StepRequest, bounds: Int64) -> bool:
        """As `Ready.try_rebind`; no gradient may lie in memory with these bounds."""
        ...

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]: ...

    def compute_leaves(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> list[Float64]: ...

    def compute_lines(
        self, measures: tuple[Measure, ...], stages: Stages, columns: Columns
    ) -> list[list[Tensor]]: ...

    def max_abs(self) -> Float64: ...

    def make_calls(self, columns: Columns) -> list[Call]: ...

    def release_gradients(self) -> None: ...


Parts = Sequence[tuple[Sequence[int], Part]]


class CompositeStep:
    """A `StepPlan` of parts.

    Args:
        request: The step.
        rounds: For each round the parts, each with the positions of its variables in the step.

    Attributes:
        parts: Those of all rounds.
    """

    def __init__(self, request: StepRequest, rounds: Sequence[Parts]) -> None:
        self._count = len(request.variables)
        self._rounds = rounds
        self.parts = [part for parts in rounds for part in parts]
        self.is_single = len(rounds) == 1
        self.dtypes: tuple[Dtype, ...] = tuple(
            dict.fromkeys(layout.compute_dtype(var.dtype) for var in request.variables)
        )
        self._bounds = layout.runs_of([each for _, part in self.parts for each in part.written])

    def try_rebind(self, request: StepRequest) -> bool:
        """See `StepPlan`."""
        if not self.is_single or len(request.variables) != self._count:
            return False
        if all(part.try_rebind(share_of(request, own), self._bounds) for own, part in self.parts):
            return True
        self.release_gradients()
        return False

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `StepPlan`."""
        found = [np.zeros(self._count, np.float64) for _ in formulas]
        for own, part in self.parts:
            for total, each in zip(
                found, part.compute_sums(formulas, stages, columns.of_members(own)), strict=True
            ):
                total[own] = each
        return found

    def sums_on_device(self, formulas: Formulas, stages: Stages, columns: Columns) -> None:
        """See `StepPlan`."""

    def compute_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> list[Float64]:
        """See `StepPlan`."""
        found = [np.empty((0, len(formulas)))] * self._count
        for own, part in self.parts:
            parts = part.compute_leaves(formulas, stages, columns.of_members(own))
            for index, leaves in zip(own, parts, strict=True):
                found[index] = leaves
        return found

    def compute_lines(
        self, measures: tuple[Measure, ...], stages: Stages, columns: Columns
    ) -> list[list[Tensor]]:
        """See `StepPlan`."""
        found: list[list[Tensor]] = [[] for _ in range(self._count)]
        for own, part in self.parts:
            parts = part.compute_lines(measures, stages, columns.of_members(own))
            for index, each in zip(own, parts, strict=True):
                found[index] = each
        return found

    def max_abs(self) -> Float64:
        """See `StepPlan`."""
        found = np.zeros(self._count, np.float64)
        for own, part in self.parts:
            found[own] = part.max_abs()
        return found

    def max_abs_on_device(self, is_checked: Tensor) -> None:
        """See `StepPlan`."""

    def make_rounds(self, columns: Columns) -> Iterator[WriteRound]:
        """See `StepPlan`."""
        for parts in self._rounds:
            members = [index for own, _ in parts for index in own]
            calls = [
                call for own, part in parts for call in part.make_calls(columns.of_members(own))
            ]
            yield WriteRound(members, calls)

    def release_gradients(self) -> None:
        """See `StepPlan`."""
        for _, part in self.parts:
            part.release_gradients()


def share_of(request: StepRequest, members: Sequence[int]) -> StepRequest:
    """The share of some of the variables in a step."""

    def pick_members(each: Sequence[object]) -> list[Any]:
        return [each[index] for index in members]

    return request._replace(
        variables=pick_members(request.variables),
        gradients=pick_members(request.gradients),
        slots=pick_members(request.slots) if request.slots else (),
        titles=pick_members(request.titles) if request.titles else (),
        copies=None if request.copies is None else pick_members(request.copies),
        vectors=pick_members(request.vectors) if request.vectors else (),
        places=pick_members(request.places) if request.places else (),
        short=pick_members(request.short) if request.short else (),
    )


class Staying:
    """A step of which nothing crosses between devices; see `far.OffloadTransfers`.

    Args:
        request: The step.
    """

    def __init__(self, request: StepRequest) -> None:
        self.request = request
        self.runs: dict[int, int] = {}

    def take_share(self, request: StepRequest, own: Sequence[int]) -> StepRequest:
        """The share of some variables in the step."""
        return share_of(request, own)

    def wrap_part(self, own: Sequence[int], part: Part) -> Part:
        """The part."""
        return part

"""Plan of a step, composed of parts (plans for some of the step's variables)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor

from thalweg._engines import layout
from thalweg._engines.array_types import Int64
from thalweg._engines.protocol import (
    Call,
    Columns,
    Dtype,
    Reduction,
    Reductions,
    Results,
    StepRequest,
    WriteRound,
)


class Part(Protocol):
    """Plan for distinct variables of a step; see `StepPlan` for its methods.

    Attributes:
        written: The tensors that the part writes.
    """

    @property
    def written(self) -> Sequence[Tensor]: ...

    def try_rebind(self, request: StepRequest, bounds: Int64) -> bool:
        """Bind the part to the gradients of a request for the part's variables; return True.

        Return False if anything except gradients differs, or if a gradient overlaps `bounds`.

        Args:
            bounds: Begin and end addresses of the memory that the step writes, ascending.
        """
        ...

    def reduce(self, reduction: Reduction, columns: Columns) -> Results: ...

    def make_calls(self, columns: Columns) -> list[Call]: ...

    def memory_checks(self) -> list[Call]:
        """Return `WriteRound.checks` of the part."""
        ...

    def release_gradients(self) -> None: ...


Parts = Sequence[tuple[Sequence[int], Part]]
# Fields of a request with an element for each variable.
_OF_VARIABLES = (
    "variables", "gradients", "slots", "titles", "copies", "vectors", "places", "short",
)  # fmt: skip


class CompositeStep:
    """A `StepPlan` that runs parts, each for some variables of the step.

    Args:
        rounds: [(indices of variables in the step, part)] for each round.

    Attributes:
        parts: The parts of all rounds.
    """

    device = None

    def __init__(self, request: StepRequest, rounds: Sequence[Parts]) -> None:
        self._count = len(request.variables)
        self._rounds = rounds
        self.parts = [plan for plans in rounds for plan in plans]
        self.is_single = len(rounds) == 1
        self.dtypes: tuple[Dtype, ...] = tuple(
            dict.fromkeys(layout.compute_dtype(var.dtype) for var in request.variables)
        )
        self._bounds = layout.merge_byte_spans(
            [tensor for _, plan in self.parts for tensor in plan.written]
        )

    def try_rebind(self, request: StepRequest) -> bool:
        """Bind all parts to the gradients of a request; return True on success.

        Return False if the step lists a variable twice. If a part cannot be bound, all parts
        release their gradients.
        """
        if not self.is_single or len(request.variables) != self._count:
            return False
        if all(
            plan.try_rebind(select_members(request, members), self._bounds)
            for members, plan in self.parts
        ):
            return True
        # Some parts may have been bound.
        self.release_gradients()
        return False

    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        return reduction.gather(self._count, _reduce_parts(self.parts, reduction, columns))

    def make_rounds(self, columns: Columns) -> Iterator[WriteRound]:
        """Yield the writes of each round; a variable that is listed twice has two rounds."""
        for plans in self._rounds:
            round_members = [index for members, _ in plans for index in members]
            calls = [
                call
                for members, plan in plans
                for call in plan.make_calls(columns.of_members(members))
            ]
            checks = [call for _, plan in plans for call in plan.memory_checks()]
            yield WriteRound(round_members, calls, checks)

    def release_gradients(self) -> None:
        for _, plan in self.parts:
            plan.release_gradients()


class JoinedReductions:
    """Reductions over the variables of several plans, one plan after another.

    Args:
        plans: (reductions, number of variables) of each plan.
    """

    def __init__(self, plans: Sequence[tuple[Reductions, int]]) -> None:
        self._parts: list[tuple[Sequence[int], Reductions]] = []
        self._count = 0
        for plan, count in plans:
            self._parts.append((range(self._count, self._count + count), plan))
            self._count += count
        devices = {plan.device for plan, _ in plans}
        self.device = devices.pop() if len(devices) == 1 else None

    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        """Return the results of all plans, joined; see `Reductions`.

        Sums and peaks are a tensor if all plans are on one device, else an array on the host.
        """
        results = list(_reduce_parts(self._parts, reduction, columns))
        if self.device is None or reduction.kind in ("leaves", "measures"):
            return reduction.gather(self._count, results)
        return torch.cat([cast("Tensor", result) for _, result in results])


def _reduce_parts(
    plans: Sequence[tuple[Sequence[int], Reductions | Part]], reduction: Reduction, columns: Columns
) -> Iterator[tuple[Sequence[int], Results]]:
    """Yield the members and the results of each part."""
    for members, plan in plans:
        yield members, plan.reduce(reduction, columns.of_members(members))


def select_members(request: StepRequest, members: Sequence[int]) -> StepRequest:
    """Return a request for the variables at the indices `members`, in this order."""

    sequences = {name: getattr(request, name) for name in _OF_VARIABLES}
    return request._replace(
        **{
            name: [per_variable[index] for index in members]
            for name, per_variable in sequences.items()
            if per_variable
        }
    )

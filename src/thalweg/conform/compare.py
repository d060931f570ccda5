"""Comparison of two optimizers over the same gradients: bits, rounding, or where they part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from thalweg.conform.argument_search import list_trials
from thalweg.conform.candidate import Candidate, as_side, shared_arguments
from thalweg.conform.driver import StepProtocol, drive, find_ways
from thalweg.conform.errors import ConformError
from thalweg.conform.inputs import STEPS
from thalweg.optim.step_options import KEYWORDS

BITS, ROUNDING, PARTS = "bits", "rounding", "parts"
BOUND = 1e-5  # of the movement
UNITS = 4  # in the last place: less cannot be told apart, however short the movement

Steps = list[list[Tensor]]


@dataclass(frozen=True)
class Divergence:
    """First difference of two optimizers: by a bit, or by more than rounding if that is the
    verdict.

    Attributes:
        step: Number of the step, from 1.
        parameter: Place of the parameter, from 0.
        shape: Its shape.
        element: Index of the element that differs most.
        theirs: The value of the other optimizer there.
        ours: The value of this library's optimizer there.
    """

    step: int
    parameter: int
    shape: tuple[int, ...]
    element: tuple[int, ...]
    theirs: float
    ours: float


@dataclass(frozen=True)
class Outcome:
    """Result of a comparison.

    Attributes:
        verdict: "bits"; "rounding", where the difference is never more than 1e-5 of the movement;
            or "parts".
        difference: After the last step, as a share of the movement: the norms of the parameter
            where it is largest.
        steps: The number of steps taken.
        way: How the other optimizer is made and driven: "list", "groups" or "model"; "closure".
        theirs: Its arguments.
        ours: The arguments of this library's optimizer.
        parting: Where they part; None if they never do.
        closed_by: The changed arguments, each of which alone makes both agree.
        tried: All arguments that were tried.
    """

    verdict: str
    difference: float
    steps: int
    way: str
    theirs: dict[str, Any]
    ours: dict[str, Any]
    parting: Divergence | None = None
    closed_by: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """True if both optimizers are the same, up to rounding."""
        return self.verdict != PARTS


def compare(theirs: object, ours: object, *, steps: int = STEPS, search: bool = True) -> Outcome:
    """Drive two optimizers over the same gradients.

    Args:
        theirs: An optimizer class, or a `Candidate`, which is one with arguments.
        ours: Likewise; where it has arguments of theirs, and is given no others, it gets their
            values.
        steps: How many to take.
        search: Whether to try arguments, where they part.

    Raises:
        ConformError: One cannot be made or driven, moves no parameter, or takes other steps in
            an equal run.

    Example:
        >>> import torch
        >>> from thalweg import optim
        >>> compare(torch.optim.SGD, optim.SGD).agrees
        True
        >>> found = compare(torch.optim.AdamW, optim.Adam)
        >>> found.verdict, found.closed_by
        ('parts', ['ours decoupled_weight_decay=True', 'both weight_decay=0.0'])
    """
    first, second = as_side(theirs), as_side(ours)
    second = second.with_arguments(**shared_arguments(first, second))
    way, ours_way = find_ways(first, second)
    theirs_steps = _drive_twice(first, way, steps)
    ours_steps = drive(second, ours_way, steps)
    verdict, difference, parting = judge(theirs_steps, ours_steps)
    closing: list[str] = []
    tried: list[str] = []
    for name, one, other in list_trials(first, second) if search and verdict == PARTS else ():
        try:
            wanted = theirs_steps if one is first else drive(one, way, steps)
            found, _, _ = judge(
                wanted, ours_steps if other is second else drive(other, ours_way, steps)
            )
        except ConformError:  # it does not take that value
            continue
        tried.append(name)
        if found != PARTS:
            closing.append(name)
    own = {name: value for name, value in second.known_values().items()
           if name not in KEYWORDS or name in second.arguments}  # fmt: skip
    return Outcome(
        verdict, difference, steps, str(way), first.known_values(), own, parting, closing, tried
    )


def judge(theirs: Steps, ours: Steps) -> tuple[str, float, Divergence | None]:
    """Return the verdict, the difference after the last step, and where they part."""
    reach = [_reach_of(theirs, place) for place in range(len(theirs[0]))]
    worst = 0.0
    first: Divergence | None = None
    for step, (these, those) in enumerate(zip(theirs, ours, strict=True)):
        worst = 0.0
        for place, (one, other) in enumerate(zip(these, those, strict=True)):
            if _has_same_bits(one, other):
                continue
            first = first or _find_parting(step, place, one, other)
            gap = _difference_of(one, other)
            if not float(gap.norm()) <= _allowed_gap(one, reach[place]):
                return (
                    PARTS,
                    _last_difference(theirs, ours, reach),
                    _find_parting(step, place, one, other),
                )
            worst = max(worst, float(gap.norm()) / (reach[place] or 1.0))
    return (BITS if first is None else ROUNDING), worst, first


def _drive_twice(one: Candidate, way: StepProtocol, steps: int) -> Steps:
    """Its steps, if they are the same twice."""
    found, again = drive(one, way, steps, seed=0), drive(one, way, steps, seed=1)
    for step, (these, those) in enumerate(zip(found, again, strict=True)):
        if not all(map(_has_same_bits, these, those)):
            raise ConformError(
                f"{one.name} is not deterministic: two equal runs differ in step {step}."
            )
    if not any(_reach_of(found, place) for place in range(len(found[0]))):
        _check_finite(found, one.name)
        raise ConformError(f"{one.name} has not moved any parameter in {steps} steps.")
    return found


def _check_finite(found: Steps, name: str) -> None:
    """Raise if a parameter is not finite after a step.

    Raises:
        ConformError: Names the first step, the parameter and an element.
    """
    for step, params in enumerate(found):
        for place, param in enumerate(params):
            wrong = (~param.isfinite()).flatten().nonzero()
            if len(wrong):
                value = float(param.flatten()[wrong[0, 0]])
                raise ConformError(
                    f"{name} makes parameter {place} of shape {list(param.shape)} {value} in step"
                    f" {step}, and moves no parameter to a finite value; there is nothing to"
                    " compare. Give other arguments by --set, such as a smaller lr."
                )


def _last_difference(theirs: Steps, ours: Steps, reach: list[float]) -> float:
    gaps = [
        float(_difference_of(one, other).norm())
        for one, other in zip(theirs[-1], ours[-1], strict=True)
    ]
    return max(gap / (length or 1.0) for gap, length in zip(gaps, reach, strict=True))


def _reach_of(steps: Steps, place: int) -> float:
    """How far from its start a parameter has been."""
    start = steps[0][place]
    finite = [each[place] for each in steps if bool(each[place].isfinite().all())]
    return max(float((each.double() - start.double()).norm()) for each in finite)


def _difference_of(one: Tensor, other: Tensor) -> Tensor:
    """Their difference; infinite where one alone is not finite."""
    gap = one.double() - other.double()
    alike = (one == other) | (one.isnan() & other.isnan())
    return torch.where(alike, 0.0, torch.where(gap.isfinite(), gap, torch.inf)).abs()


def _allowed_gap(value: Tensor, reach: float) -> float:
    unit = float(value.abs().nan_to_num().max()) * 2.0**-23
    return max(BOUND * reach, UNITS * unit)


def _has_same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def _find_parting(step: int, place: int, one: Tensor, other: Tensor) -> Divergence:
    at = int(_difference_of(one, other).argmax())
    place_in_tensor = torch.tensor(at, dtype=torch.int64, device="cpu")
    index = tuple(int(each) for each in torch.unravel_index(place_in_tensor, one.shape))
    values = float(one.flatten()[at]), float(other.flatten()[at])
    return Divergence(step, place, tuple(one.shape), index, *values)

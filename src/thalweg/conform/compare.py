"""Comparison of two optimizers over the same gradients."""

# torch does not annotate `norm`.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from thalweg.conform.argument_search import list_trials
from thalweg.conform.candidate import Candidate, ConformError, as_side, shared_arguments
from thalweg.conform.driver import STEPS, StepProtocol, drive, find_ways
from thalweg.optim.step_options import KEYWORDS

BITS, ROUNDING, PARTS = "bits", "rounding", "parts"
# The largest rounding difference, as a share of the movement.
BOUND = 1e-5
# Units in the last place that always count as rounding, however short the movement.
UNITS = 4

Steps = list[list[Tensor]]


@dataclass(frozen=True)
class Divergence:
    """First difference between two optimizers: the element of a parameter that differs most.

    For the verdict "parts", differences that count as rounding are ignored.

    Attributes:
        step: The number of the step, from 1.
        parameter: The index of the parameter, from 0.
        element: The index of the element that differs most.
        theirs: The element's value by the external optimizer.
        ours: The element's value by this library's optimizer.
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
        verdict: "bits" for equal bits; "rounding" for a difference of at most 1e-5 of the movement
            (distance from the start); or "parts" for a larger difference.
        difference: The largest norm of a parameter's difference after the last step, divided by
            the norm of the parameter's movement.
        way: The protocol of the external optimizer: "list", "groups" or "model"; "closure".
        theirs: The external optimizer's arguments.
        ours: The arguments of this library's optimizer.
        parting: The first difference, or None.
        closed_by: The argument changes, each of which alone makes both optimizers agree.
        tried: All argument changes that were tried.
    """

    verdict: str
    difference: float
    steps: int
    way: str
    theirs: dict[str, Any]
    ours: dict[str, Any]
    parting: Divergence | None = None
    closed_by: list[str] = field(default_factory=list[str])
    tried: list[str] = field(default_factory=list[str])

    @property
    def agrees(self) -> bool:
        """True if both optimizers are the same, up to rounding."""
        return self.verdict != PARTS


def compare(theirs: object, ours: object, *, steps: int = STEPS, search: bool = True) -> Outcome:
    """Run two optimizers over the same gradients, and return the outcome.

    Args:
        theirs: An external optimizer class, or a `Candidate`: a class with arguments.
        ours: A class or `Candidate` of this library. Unset arguments take the values of `theirs`.
        search: True to try argument changes if the optimizers differ.

    Raises:
        ConformError: An optimizer cannot be constructed or stepped. Or the external optimizer moves
            no parameter, or gives other results in a second run.

    Example:
        >>> import torch
        >>> from thalweg import optim
        >>> compare(torch.optim.SGD, optim.SGD).agrees
        True
        >>> found = compare(torch.optim.AdamW, optim.Adam)
        >>> found.verdict, found.closed_by
        ('parts', ['ours decoupled_weight_decay=True', 'both weight_decay=0.0'])
    """
    external, native = as_side(theirs), as_side(ours)
    native = native.with_arguments(**shared_arguments(external, native))
    protocol, native_protocol = find_ways(external, native)
    external_steps = _drive_twice(external, protocol, steps)
    native_steps = drive(native, native_protocol, steps)
    verdict, difference, parting = judge(external_steps, native_steps)
    agreeing: list[str] = []
    trials: list[str] = []
    candidates = list_trials(external, native) if search and verdict == PARTS else ()
    for name, external_trial, native_trial in candidates:
        trial_steps = external_steps, native_steps
        try:
            if external_trial is not external:
                trial_steps = drive(external_trial, protocol, steps), native_steps
            if native_trial is not native:
                trial_steps = trial_steps[0], drive(native_trial, native_protocol, steps)
            trial_verdict, _, _ = judge(*trial_steps)
        except ConformError:
            # The optimizer does not accept the value.
            continue
        trials.append(name)
        if trial_verdict != PARTS:
            agreeing.append(name)
    native_arguments = {name: value for name, value in native.known_values().items()
           if name not in KEYWORDS or name in native.arguments}  # fmt: skip
    arguments = external.known_values(), native_arguments
    return Outcome(verdict, difference, steps, str(protocol), *arguments, parting, agreeing, trials)


def judge(external: Steps, native: Steps) -> tuple[str, float, Divergence | None]:
    """Return (verdict, difference, first divergence) of two results of `drive`; see `Outcome`.

    The divergence is None for the verdict "bits", and exceeds rounding for "parts".
    """
    movements = [_movement_of(external, index) for index in range(len(external[0]))]
    largest = 0.0
    first: Divergence | None = None
    for step, (external_params, native_params) in enumerate(zip(external, native, strict=True)):
        largest = 0.0
        params = zip(external_params, native_params, strict=True)
        for index, (param, native_param) in enumerate(params):
            if _has_same_bits(param, native_param):
                continue
            first = first or _find_divergence(step, index, param, native_param)
            gap = _difference_of(param, native_param)
            # `not <=` instead of `>`: a NaN counts as a difference.
            if not float(gap.norm()) <= _allowed_gap(param, movements[index]):
                return (
                    PARTS,
                    _last_difference(external, native, movements),
                    _find_divergence(step, index, param, native_param),
                )
            # The difference of a parameter that does not move is taken as it is.
            largest = max(largest, float(gap.norm()) / (movements[index] or 1.0))
    return (BITS if first is None else ROUNDING), largest, first


def _drive_twice(candidate: Candidate, protocol: StepProtocol, steps: int) -> Steps:
    """Call `drive` with seeds 0 and 1; return the result of the first call.

    Raise ConformError if the second run differs, or if no parameter moves.
    """
    # Another seed reveals optimizers that draw random numbers.
    snapshots, repeats = (drive(candidate, protocol, steps, seed) for seed in (0, 1))
    for step, (params, repeated_params) in enumerate(zip(snapshots, repeats, strict=True)):
        if not all(map(_has_same_bits, params, repeated_params)):
            raise ConformError(
                f"{candidate.name} is not deterministic: two equal runs differ in step {step}."
            )
    if not any(_movement_of(snapshots, index) for index in range(len(snapshots[0]))):
        _check_finite(snapshots, candidate.name)
        raise ConformError(f"{candidate.name} has not moved any parameter in {steps} steps.")
    return snapshots


def _check_finite(snapshots: Steps, name: str) -> None:
    """Raise ConformError, which names the step and parameter, if a parameter is not finite."""
    for step, params in enumerate(snapshots):
        for index, param in enumerate(params):
            bad_indices = (~param.isfinite()).flatten().nonzero()
            if len(bad_indices):
                element = float(param.flatten()[bad_indices[0, 0]])
                raise ConformError(
                    f"{name} makes parameter {index} of shape {list(param.shape)} {element} in step"
                    f" {step}, and moves no parameter to a finite value; there is nothing to"
                    " compare. Give other arguments by --set, such as a smaller lr."
                )


def _last_difference(external: Steps, native: Steps, movements: list[float]) -> float:
    """Return the largest difference of a parameter after the last step, as share of movement."""
    gaps = [
        float(_difference_of(param, native_param).norm())
        for param, native_param in zip(external[-1], native[-1], strict=True)
    ]
    return max(gap / (movement or 1.0) for gap, movement in zip(gaps, movements, strict=True))


def _movement_of(snapshots: Steps, index: int) -> float:
    """Return the largest distance of a parameter from its start, as a norm."""
    start = snapshots[0][index]
    finite = [params[index] for params in snapshots if bool(params[index].isfinite().all())]
    return max(float((params.double() - start.double()).norm()) for params in finite)


def _difference_of(first: Tensor, second: Tensor) -> Tensor:
    """Return the absolute difference; infinite where only one tensor is finite."""
    gap = first.double() - second.double()
    # Equal infinities have a NaN as difference, and NaNs are unequal.
    is_equal = (first == second) | (first.isnan() & second.isnan())
    return torch.where(is_equal, 0.0, torch.where(gap.isfinite(), gap, torch.inf)).abs()


def _allowed_gap(param: Tensor, movement: float) -> float:
    """Return the largest norm of a difference that counts as rounding."""
    unit = float(param.abs().nan_to_num().max()) * 2.0**-23
    return max(BOUND * movement, UNITS * unit)


def _has_same_bits(first: Tensor, second: Tensor) -> bool:
    """Return True if all bits of two tensors are equal."""
    # As integers, 0 and -0 differ, and equal NaNs are equal.
    return torch.equal(first.view(torch.int32), second.view(torch.int32))


def _find_divergence(
    step: int, param_index: int, param: Tensor, native_param: Tensor
) -> Divergence:
    """Return the divergence of a parameter at its element that differs most."""
    flat_index = int(_difference_of(param, native_param).argmax())
    position = torch.tensor(flat_index, dtype=torch.int64, device="cpu")
    coordinates = tuple(map(int, torch.unravel_index(position, param.shape)))
    values = float(param.flatten()[flat_index]), float(native_param.flatten()[flat_index])
    return Divergence(step, param_index, tuple(param.shape), coordinates, *values)

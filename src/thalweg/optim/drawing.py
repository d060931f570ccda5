"""Which random bits parameters draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from thalweg.core.groups import titles_in
from thalweg.core.meshes import is_on_mesh


def places_of(optimizer: Any, params: Sequence[Tensor]) -> list[tuple[int, int]]:
    """For each parameter of a step its place among all of an optimizer, and where it begins.

    Raises:
        NotImplementedError: One is not on the CPU, is a DTensor, or has a sparse gradient.
    """
    every = (param for group in optimizer.param_groups for param in group["params"])
    numbers = {id(param): number for number, param in enumerate(every)}
    for param in params:
        why = _why_not(param)
        if why:
            (title,) = titles_in(optimizer.param_groups, [param])
            raise NotImplementedError(
                "round='stochastic' is for dense gradients of whole parameters on the CPU:"
                f" '{title}' {why}."
            )
    return [(numbers[id(param)], 0) for param in params]


def _why_not(param: Tensor) -> str:
    if is_on_mesh(param):
        return "is a DTensor"
    if param.device.type != "cpu":
        return f"is on {param.device}"
    grad = param.grad
    return "has a sparse gradient" if grad is not None and grad.is_sparse else ""

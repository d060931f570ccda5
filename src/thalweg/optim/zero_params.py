"""Warnings of parameters that are 0 before their first step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from thalweg._core.dtensor import is_on_mesh, whole
from thalweg._core.param_groups import parameter_names
from thalweg.errors import NumericsWarning, warn


def warn_zero_params(optimizer: Any, pairs: Iterable[tuple[Tensor, Sequence[str]]]) -> None:
    """Warn of each all-zero parameter before its first step, that is, if its state lacks a slot.

    Args:
        pairs: (parameter, (name of the slot, text of the warning)). A parameter with an empty tuple
            gets no warning.
    """
    new = [
        (param, note[1])
        for param, note in pairs
        if note and note[0] not in optimizer.state.get(param, {}) and param.numel()
    ]
    # `any` of a DTensor is a collective below, so the ranks must be in the same step.
    if optimizer.step_cache.team is not None and any(is_on_mesh(param) for param, _ in new):
        optimizer.step_cache.team.meet()
    for param, effect in new:
        if not (param.is_meta or whole(param.any())):
            warn(
                f"'{parameter_names(optimizer.param_groups, [param])[0]}' {effect}", NumericsWarning
            )

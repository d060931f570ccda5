"""Parameters that are 0 before their first step, of which a rule then does less."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from thalweg.core.groups import titles_in
from thalweg.core.meshes import whole
from thalweg.errors import NumericsWarning, warn


def tell_of_zeros(optimizer: Any, pairs: Iterable[tuple[Tensor, Sequence[str]]]) -> None:
    """Warn of those that are, once for each.

    Args:
        optimizer: A `FusedOptimizer`.
        pairs: Parameters, each with a slot that it is to get and what is said of it then; the
            latter may be empty.
    """
    for param, without in pairs:
        is_new = without and without[0] not in optimizer.state.get(param, {})
        if is_new and param.numel() and not whole(param.any()):
            title = titles_in(optimizer.param_groups, [param])[0]
            warn(f"'{title}' {without[1]}", NumericsWarning)

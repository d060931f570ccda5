"""Gradients summed over the ranks of a process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from thalweg.core.pairs import Pair
from thalweg.indexed_slices import IndexedSlices


def summed_over_replicas(pairs: Sequence[Pair], group: Any = None) -> list[Pair]:
    """The pairs with each gradient summed over the ranks; every rank gives the same variables.

    Rows of sparse gradients are brought together, not added up: a row that two ranks name is
    named twice.

    Args:
        pairs: Gradients and variables.
        group: A process group; None takes the default one, or this process alone.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return list(pairs)
    if distributed.get_world_size(group) == 1:
        return list(pairs)
    return [(_summed(grad, group), var) for grad, var in pairs]


def _summed(grad: Any, group: Any) -> Any:
    if isinstance(grad, IndexedSlices):
        parts: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(parts, (grad.values, grad.indices), group=group)
        values = torch.cat([values for values, _ in parts])
        return IndexedSlices(values, torch.cat([rows for _, rows in parts]), grad.dense_shape)
    total = grad.clone()
    distributed.all_reduce(total, group=group)
    return total

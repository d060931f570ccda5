"""Rows of a sparse gradient, each index once."""

from __future__ import annotations

from typing import Any

import torch

from thalweg._base.static_shape import UNKNOWN
from thalweg._graph.eager_or_graph import IndexedSlices
from thalweg._graph.operation import operation
from thalweg._graph.shapes import Output
from thalweg._graph.symbolic_slices import SymbolicSlices


def deduplicated(values: Any, indices: Any) -> tuple[Any, Any]:
    """Return (sum of the rows of each distinct index, distinct indices).

    Args:
        values: Rows, of shape (rows, *row shape).
        indices: int32 or int64, of shape (rows,).
    """
    slices = IndexedSlices(values, indices)
    if not isinstance(slices, SymbolicSlices):
        return _sum_rows(slices)
    rows = None if values.shape is UNKNOWN else (None, *values.shape[1:])
    outputs = [Output(values.dtype, rows, ()), Output(indices.dtype, (None,), ())]
    return tuple(operation(_sum_rows, [slices], "deduplicate", kind="pure", outputs=outputs))


def _sum_rows(slices: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (values, indices) of slices with equal indices added."""
    summed = slices.deduplicated()
    return summed.values, summed.indices

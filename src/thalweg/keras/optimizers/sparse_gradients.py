"""Sparse gradients in eager and graph mode."""

from __future__ import annotations

from typing import Any

from thalweg._base.execution_context import is_symbolic
from thalweg._core.graph_mode import graph_mode
from thalweg.indexed_slices import IndexedSlices


def rows_of(values: object, indices: object) -> IndexedSlices | None:
    """Return a sparse gradient with rows `values` at `indices`."""
    if is_symbolic(values) or is_symbolic(indices):
        return graph_mode().slices(values, indices)
    return IndexedSlices(values, indices)


def deduplicated(values: object, indices: object) -> tuple[Any, Any]:
    """Return (values, indices) with unique indices; rows of repeated indices are summed.

    Args:
        values: The rows.
        indices: int32 or int64, of shape (rows,).
    """
    if is_symbolic(values) or is_symbolic(indices):
        return graph_mode().deduplicated(values, indices)
    unique_slices = IndexedSlices(values, indices).deduplicated()
    return unique_slices.values, unique_slices.indices

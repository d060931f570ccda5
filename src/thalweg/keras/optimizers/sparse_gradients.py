"""Rows of sparse gradients, in eager mode or of a graph."""

from __future__ import annotations

from typing import Any

from thalweg._base.execution_context import is_symbolic
from thalweg._core.graph_mode import graph_mode
from thalweg.indexed_slices import IndexedSlices


def rows_of(values: object, indices: object) -> IndexedSlices | None:
    """Rows of a tensor: `values` at `indices`."""
    if is_symbolic(values) or is_symbolic(indices):
        return graph_mode().slices(values, indices)
    return IndexedSlices(values, indices)


def deduplicated(values: object, indices: object) -> tuple[Any, Any]:
    """Return the sums of rows that are named more than once, and the indices, each once.

    Args:
        values: The rows.
        indices: int32 or int64, of shape (rows,).
    """
    if is_symbolic(values) or is_symbolic(indices):
        return graph_mode().deduplicated(values, indices)
    found = IndexedSlices(values, indices).deduplicated()
    return found.values, found.indices

"""Accumulators: the mean of the gradients that several workers have of one variable."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.indexed_slices import IndexedSlices


class DenseAccumulator:
    """The sum of dense gradients, in the order in which they are added.

    None counts as a gradient of zeros; the mean of nothing but None is None.
    """

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._count = 0

    def add(self, gradient: Tensor | None) -> None:
        """Add a gradient; it is copied."""
        self._count += 1
        if gradient is None:
            return
        if self._sum is None:
            self._sum = gradient.detach().clone()
        else:
            self._sum += gradient.detach()

    def mean(self) -> Tensor | None:
        """Return the sum divided by the number of gradients; nothing may be added after it."""
        return None if self._sum is None else self._sum.div_(self._count)


class SparseAccumulator:
    """The sum of the rows of sparse gradients, and how many gradients contained each row.

    Each row is divided by its own count, not by the number of gradients. Rows that one gradient
    names several times are summed first and count once.
    """

    def __init__(self) -> None:
        self._rows: Tensor | None = None  # sorted, each once
        self._sums = torch.empty(0, dtype=torch.float32, device="cpu")
        self._counts = torch.empty(0, dtype=torch.float32, device="cpu")
        self._shape: torch.Size | None = None

    def add(self, gradient: IndexedSlices | None) -> None:
        """Add the rows of a gradient to the sums, and count the rows; None counts nothing.

        The values are copied. Repeated rows of the gradient are summed first and count once.
        """
        if gradient is None:
            return
        if len(torch.unique(gradient.indices)) < len(gradient.indices):
            gradient = gradient.deduplicated()
        indices, order = torch.sort(gradient.indices.long())
        values = gradient.values.detach()[order]
        if self._rows is None:
            self._rows, self._sums = indices, values
            self._counts = torch.ones_like(indices)
            self._shape = gradient.dense_shape
            return
        rows = torch.unique(torch.cat([self._rows, indices]))
        sums = values.new_empty((len(rows), *values.shape[1:]))
        counts = torch.zeros_like(rows)
        previous_indices = torch.searchsorted(rows, self._rows)
        sums[previous_indices], counts[previous_indices] = self._sums, self._counts
        new_indices = torch.searchsorted(rows, indices)
        is_new = counts[new_indices] == 0
        sums[new_indices[is_new]] = values[is_new]
        sums[new_indices[~is_new]] += values[~is_new]
        counts[new_indices] += 1
        self._rows, self._sums, self._counts = rows, sums, counts

    def mean(self) -> IndexedSlices | None:
        """Return the means of the rows, sorted by row; nothing may be added after it."""
        if self._rows is None:
            return None
        counts = self._counts.to(self._sums.dtype)
        counts = counts.reshape(-1, *[1] * (self._sums.dim() - 1))
        return IndexedSlices(self._sums / counts, self._rows, self._shape)


Accumulator = DenseAccumulator | SparseAccumulator

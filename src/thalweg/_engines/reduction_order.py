"""Sums over leaves (blocks of 65,536 elements), in an order that gives equal bits on all engines.

A formula `(var, grad, *slots) -> number` is evaluated in float64 for each element, and summed. The
elements of a tensor, in row-major order of indices, are divided into leaves of `LEAF` elements. In
a leaf, lane j begins at +0 and adds the elements j, j + `LANES`, j + 2 * `LANES`, ... one by one;
then the upper half of the lanes is added to the lower half until one lane is left. Leaves of a
tensor are added in adjacent pairs, then the sums are added in pairs, and so on; a sum without a
partner is unchanged. Products are rounded before they are added. The result does not depend on the
number of threads, the device or the other tensors of a step. A NaN may have any payload.

If a tensor is divided at the end of a leaf, the parts have the leaves of the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thalweg._engines.array_types import enumerate_runs

LEAF = 1 << 16  # elements of a leaf
LANES = 1 << 10  # running sums in a leaf; divides LEAF

Array = TypeVar("Array", npt.NDArray[np.float64], Tensor)


def leaf_counts(sizes: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of leaves for each number of elements in `sizes`; 0 for no elements."""
    return -(-np.asarray(sizes, np.int64) // LEAF)


def leaves_of(values: Array) -> Array:
    """Return the sum of each leaf of one tensor, without waiting for the device.

    Args:
        values: (n,) float64, in NumPy or in torch on any device.

    Returns:
        (leaves,) float64, an array or a tensor on the device of `values`.
    """
    library: Any = np if isinstance(values, np.ndarray) else torch
    options = {"dtype": values.dtype, "device": values.device}
    count = -(-len(values) // LEAF)
    # No lane is -0, so adding +0 for missing elements does not change a sum.
    height = LEAF // LANES if count > 1 else -(-len(values) // LANES)
    padded = library.zeros(count * height * LANES, **options)
    padded[: len(values)] = values
    return fold_lanes(
        padded.reshape(count, height, LANES), library.zeros((count, LANES), **options)
    )


def fold_lanes(rows: Any, lanes: Any) -> Any:
    """Return the sums of leaves (leaves, height, LANES); `lanes` are zeros (leaves, LANES)."""
    with np.errstate(all="ignore"):
        for row in range(rows.shape[1]):
            lanes = lanes + rows[:, row]
        while lanes.shape[1] > 1:
            half = lanes.shape[1] // 2
            lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


class Tree:
    """Index tables that combine the leaves of several tensors, reused in all steps.

    Args:
        counts: (tensors,) the number of leaves of each tensor.
        device: The device of torch leaves, or None for NumPy leaves.
    """

    def __init__(
        self, counts: npt.NDArray[np.int64], device: torch.device | str | None = None
    ) -> None:
        def to_device(indices: npt.NDArray[np.int64]) -> Any:
            return indices if device is None else torch.from_numpy(indices).to(device)  # pyright: ignore[reportUnknownMemberType]

        self._tensors = len(counts)
        present = np.flatnonzero(counts)
        self._present = None if len(present) == len(counts) else to_device(present)
        counts = counts[present]
        # For each level: indices of left summands, of pairs, and of the right summands of pairs.
        self._levels: list[tuple[Any, Any, Any]] = []
        while len(counts) and counts.max() > 1:
            sum_counts = (counts + 1) // 2
            tensor, index = enumerate_runs(sum_counts)
            first_indices = (np.cumsum(counts) - counts)[tensor] + 2 * index
            pair_indices = np.flatnonzero(2 * index + 1 < counts[tensor])
            self._levels.append(
                (
                    to_device(first_indices),
                    to_device(pair_indices),
                    to_device(first_indices[pair_indices] + 1),
                )
            )
            counts = sum_counts

    def combine(self, leaves: Array) -> Array:
        """Return the sum of the leaves of each tensor, in the order that the module defines.

        Args:
            leaves: (leaves of all tensors, ...) float64, tensor after tensor. Not changed.

        Returns:
            (tensors, ...) float64; +0 for a tensor without leaves.
        """
        for first_indices, pair_indices, right_indices in self._levels:
            # An index array copies, so that `leaves` is not changed.
            pair_sums: Any = leaves[first_indices]
            with np.errstate(all="ignore"):
                pair_sums[pair_indices] += leaves[right_indices]
            leaves = pair_sums
        if self._present is None:
            return leaves
        library: Any = np if isinstance(leaves, np.ndarray) else torch
        shape = (self._tensors, *leaves.shape[1:])
        sums: Any = library.zeros(shape, dtype=leaves.dtype, device=leaves.device)
        sums[self._present] = leaves
        return sums


def combine_few(values: list[float]) -> float:
    """Return the sum of one tensor's leaves; equal to `Tree.combine`, but faster for few leaves."""
    while len(values) > 1:
        unpaired = values[-1:] if len(values) % 2 else []
        values = [first + second for first, second in zip(values[::2], values[1::2], strict=False)]
        values += unpaired
    return values[0] if values else 0.0


def combine_leaves(leaves: Array, counts: npt.NDArray[np.int64]) -> Array:
    """Return the sum of each tensor's leaves, given their counts; see `Tree.combine`."""
    return Tree(counts, None if isinstance(leaves, np.ndarray) else leaves.device).combine(leaves)

"""What a measure of a tensor is, to the last bit: the order in which every engine adds numbers up.

A measure is an element formula `(var, grad, *slots) -> number`, evaluated in float64 on the stored
numbers, and its sum. A tensor's elements, in row-major order of their indices whatever the layout
of its memory, are cut into leaves of `LEAF`. In a leaf, lane j begins at +0 and adds the elements
j, j + `LANES`, j + 2 * `LANES`, ... one by one; then the upper half of the lanes is added to the
lower half until one is left. Leaves of a tensor are added in pairs of neighbours, then their sums
are, and so on; one without a neighbour stays as it is. Products are rounded before they are added.
Nothing else enters: not the number of threads, not the device, not the other tensors of a step. A
sum that is NaN is a NaN of any payload.

So a tensor that is cut where a leaf ends has the leaves of its parts, wherever these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thalweg._engines.array_types import numbered

LEAF = 1 << 16  # elements that are added up without a look at any others
LANES = 1 << 10  # running sums in a leaf; divides LEAF

Array = TypeVar("Array", npt.NDArray[np.float64], Tensor)


def leaf_counts(sizes: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many leaves tensors of so many elements have; an empty one has none."""
    return -(-np.asarray(sizes, np.int64) // LEAF)


def leaves_of(values: Array) -> Array:
    """The sums of the leaves of one tensor.

    Args:
        values: (n,) float64, in NumPy or in torch on any device; the host never waits for it.

    Returns:
        (leaves,) float64, likewise.
    """
    library: Any = np if isinstance(values, np.ndarray) else torch
    options = {"dtype": values.dtype, "device": values.device}
    count = -(-len(values) // LEAF)
    # No lane is ever -0, so that adding +0 where elements are missing changes nothing.
    height = LEAF // LANES if count > 1 else -(-len(values) // LANES)
    whole = library.zeros(count * height * LANES, **options)
    whole[: len(values)] = values
    rows = whole.reshape(count, height, LANES)
    lanes = library.zeros((count, LANES), **options)
    with np.errstate(all="ignore"):
        for row in range(height):
            lanes = lanes + rows[:, row]
        while lanes.shape[1] > 1:
            half = lanes.shape[1] // 2
            lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


class Tree:
    """How the leaves of several tensors become one number for each; made once, used in each step.

    Args:
        counts: (tensors,) leaves of each tensor.
        device: Where the leaves are, if they are in torch; None if they are in NumPy.
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
        # For each level: the left one of each pair, and which of them have a right one.
        self._levels: list[tuple[Any, Any, Any]] = []
        while len(counts) and counts.max() > 1:
            above = (counts + 1) // 2
            tensor, number = numbered(above)
            left = (np.cumsum(counts) - counts)[tensor] + 2 * number
            paired = np.flatnonzero(2 * number + 1 < counts[tensor])
            self._levels.append((to_device(left), to_device(paired), to_device(left[paired] + 1)))
            counts = above

    def combine(self, leaves: Array) -> Array:
        """One number for each tensor.

        Args:
            leaves: (leaves of all tensors, ...) float64, tensor after tensor. Not changed.

        Returns:
            (tensors, ...) float64; +0 for a tensor without leaves.
        """
        for left, paired, right in self._levels:
            above: Any = leaves[left]
            with np.errstate(all="ignore"):
                above[paired] += leaves[right]
            leaves = above
        if self._present is None:
            return leaves
        library: Any = np if isinstance(leaves, np.ndarray) else torch
        shape = (self._tensors, *leaves.shape[1:])
        result: Any = library.zeros(shape, dtype=leaves.dtype, device=leaves.device)
        result[self._present] = leaves
        return result


def combine_few(values: list[float]) -> float:
    """As `Tree.combine` of one tensor, faster while it has few leaves."""
    while len(values) > 1:
        odd = values[-1:] if len(values) % 2 else []
        values = [left + right for left, right in zip(values[::2], values[1::2], strict=False)]
        values += odd
    return values[0] if values else 0.0


def combine_leaves(leaves: Array, counts: npt.NDArray[np.int64]) -> Array:
    """One number for each tensor of so many leaves; see `Tree.combine`."""
    return Tree(counts, None if isinstance(leaves, np.ndarray) else leaves.device).combine(leaves)

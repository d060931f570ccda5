"""Partitioners: functions that return the number of parts along each axis; see `get_variable`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from thalweg.errors import InvalidArgumentError

Partitioner = Callable[..., list[int]]


def _single_parts(shape: Sequence[int], axis: int) -> list[int]:
    """Return 1 for each axis.

    Raise InvalidArgumentError if `axis` is not an axis of `shape`.
    """
    if not -len(shape) <= axis < len(shape):
        raise InvalidArgumentError(
            f"Cannot partition variable along axis {axis} when shape is only {tuple(shape)}"
        )
    return [1] * len(shape)


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Partitioner:
    """Return a function: `partition(shape)` divides an axis into `num_shards` parts.

    Args:
        num_shards: Number of parts; a shorter axis has one part per element.
        axis: Axis that is divided.
    """

    def partition(shape: Sequence[int], **unused: object) -> list[int]:
        """Return the number of parts along each axis."""
        counts = _single_parts(shape, axis)
        counts[axis] = min(num_shards, shape[axis])
        return counts

    return partition


def variable_axis_size_partitioner(
    max_shard_bytes: int,
    axis: int = 0,
    bytes_per_string_element: int = 16,
    max_shards: int | None = None,
) -> Partitioner:
    """Return a function: `partition(shape, dtype)` divides an axis into parts of limited size.

    Args:
        max_shard_bytes: Maximum size of a part in bytes, at least 1. Parts are larger if one
            index along the axis needs more bytes, or if `max_shards` forbids more parts.
        axis: Axis that is divided.
        bytes_per_string_element: Ignored: there are no variables of strings.
        max_shards: Optional. Maximum number of parts.

    Raises:
        InvalidArgumentError: `max_shard_bytes` or `max_shards` is below 1.
    """
    for name, value in (("max_shard_bytes", max_shard_bytes), ("max_shards", max_shards)):
        if value is not None and value < 1:
            raise InvalidArgumentError(f"{name} must be positive, but is {value}.")

    def partition(shape: Sequence[int], dtype: Any) -> list[int]:
        """Return the number of parts along each axis."""
        counts = _single_parts(shape, axis)
        row = math.prod(size for index, size in enumerate(shape) if index != axis) * dtype.itemsize
        # An empty row has no size to limit.
        if row:
            indices = max(1, max_shard_bytes // row)
            limit = shape[axis] if max_shards is None else max_shards
            counts[axis] = min(math.ceil(shape[axis] / indices), limit)
        return counts

    return partition


def min_max_variable_partitioner(
    max_partitions: int = 1,
    axis: int = 0,
    min_slice_size: int = 256 << 10,
    bytes_per_string_element: int = 16,
) -> Partitioner:
    """Return a function: `partition(shape, dtype)` divides an axis into parts of a minimum size.

    Args:
        max_partitions: Maximum number of parts, at least 1.
        axis: Axis that is divided; all other axes stay whole.
        min_slice_size: Minimum size of a part in bytes; a smaller variable is one part.
        bytes_per_string_element: Ignored: there are no variables of strings.

    Raises:
        InvalidArgumentError: `max_partitions` is below 1.
    """
    if max_partitions < 1:
        raise InvalidArgumentError(f"max_partitions must be positive, but is {max_partitions}.")

    def partition(shape: Sequence[int], dtype: Any) -> list[int]:
        """Return the number of parts along each axis."""
        counts = _single_parts(shape, axis)
        count = max(1, math.prod(shape) * dtype.itemsize // min_slice_size)
        counts[axis] = min(max_partitions, count, shape[axis])
        return counts

    return partition

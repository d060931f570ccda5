"""Offsets of elements in memory that is not in row-major order, such as channels last.

Measures add elements in row-major order of indices; see `_engines/reduction_order.py`. Kernels that
measure read offsets of elements from two tables: the offsets within a period of elements, and the
offset of each period.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from thalweg._engines.array_types import Int32, Int64

# Elements of a period. Each end of a period costs time, and a longer table fills the L1 cache.
_PERIOD = 1 << 12
# If a period spans more than `_SPREAD` times the minimal number of cache lines (of `_LINE`
# elements), each line is fetched several times, and a copy by torch is faster.
_SPREAD, _LINE = 3, 16

Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides


class _Tables(NamedTuple):
    """Offset tables of one layout, in elements.

    Attributes:
        period_offsets: Offsets of the elements of a period from its first element.
        period_starts: Offsets of the first elements of periods from the tensor's first element.
        is_compact: True if the elements at the start of a period lie in few cache lines.

    Both arrays are empty if the elements lie in row-major order.
    """

    period_offsets: Int32
    period_starts: Int64
    is_compact: bool


class Offsets:
    """Offset tables of several tensors; tensors of one layout share their tables.

    Args:
        layouts: Shape and strides of each tensor; no tensor is empty.

    Attributes:
        table: (tensors, 3) int64: the number of elements of a period and the addresses of
            `period_offsets` and `period_starts`. The number is 0 for row-major order.
        are_compact: True if kernels that read offsets are faster than copies.
    """

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self._tables = {layout: _make_tables(*layout) for layout in dict.fromkeys(layouts)}
        rows = {
            layout: (len(offsets), offsets.ctypes.data, starts.ctypes.data)
            for layout, (offsets, starts, _) in self._tables.items()
        }
        self.table = np.array([rows[layout] for layout in layouts], np.int64)
        self.are_compact = all(tables.is_compact for tables in self._tables.values())


def _make_tables(shape: tuple[int, ...], strides: tuple[int, ...]) -> _Tables:
    """Return the offset tables of a tensor with a shape and strides."""
    sizes, steps = _merge_dimensions(shape, strides)
    if not steps or steps == [1]:
        return _Tables(np.zeros(0, np.int32), np.zeros(0, np.int64), is_compact=True)
    first = len(sizes) - 1
    while first and np.prod(sizes[first:]) < _PERIOD:
        first -= 1
    # The last of several periods may lack rows, but only where a dimension before all others is
    # divided. Elsewhere all periods need to be whole.
    inner = int(np.prod(sizes[first + 1 :]))
    rows = sizes[first] if first else min(sizes[0], max(1, _PERIOD // inner))
    period_offsets = _add_offsets([rows, *sizes[first + 1 :]], steps[first:])
    counts = [*sizes[:first], -(-sizes[first] // rows)]
    period_starts = _add_offsets(counts, [*steps[:first], rows * steps[first]])
    first_offsets = period_offsets[:_PERIOD]
    lines = len(np.unique(first_offsets // _LINE))
    is_compact = lines * _LINE <= _SPREAD * len(first_offsets) and period_offsets[-1] < 1 << 31
    return _Tables(period_offsets.astype(np.int32), period_starts, bool(is_compact))


def _merge_dimensions(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """Return (sizes, strides) without dimensions of size 1; merge neighbours without a gap."""
    sizes: list[int] = []
    steps: list[int] = []
    for size, step in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if steps and steps[-1] == size * step:
            sizes[-1] *= size
            steps[-1] = step
        else:
            sizes.append(size)
            steps.append(step)
    return sizes, steps


def _add_offsets(sizes: Sequence[int], steps: Sequence[int]) -> Int64:
    """Return the offsets of all elements of an array with these strides, in row-major order."""
    offsets = np.zeros(1, np.int64)
    for size, step in zip(sizes, steps, strict=True):
        offsets = (offsets[:, None] + step * np.arange(size)).reshape(-1)
    return offsets

"""The places of elements in memory that is not in row-major order, such as channels last.

Measures add elements in row-major order of their indices; see `_engines/reduction_order.py`.
Kernels that measure look up where the elements lie: a table has the offsets of a period of
elements, and another one has the offset of each period.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from thalweg._engines.array_types import Int32, Int64

# Each end of a period costs time, and the table of a longer one fills the nearest cache.
_PERIOD = 1 << 12
# A period that lies in more times its own number of cache lines is read more slowly than torch
# copies it, as each line is fetched several times.
_SPREAD, _LINE = 3, 16

Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides


class _Tables(NamedTuple):
    """Offsets in elements, of one layout.

    Attributes:
        within: Offsets of the elements of a period from its first one.
        periods: Offsets of the first elements of periods from that of the tensor.
        is_near: Whether the elements at the start of a period lie in few cache lines.
    """

    within: Int32
    periods: Int64
    is_near: bool


class Offsets:
    """The tables of several tensors; tensors of one layout share theirs.

    Args:
        layouts: The layout of each tensor, which has elements.

    Attributes:
        table: (tensors, 3) int64: the number of elements of a period and the addresses of `within`
            and `periods`; zeros for a tensor whose elements lie in row-major order.
        are_near: Whether kernels that look places up are faster than copies.
    """

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self._tables = {each: _make_tables(*each) for each in dict.fromkeys(layouts)}
        rows = {
            layout: [len(made.within), made.within.ctypes.data, made.periods.ctypes.data]
            if made
            else [0, 0, 0]
            for layout, made in self._tables.items()
        }
        self.table = np.array([rows[each] for each in layouts], np.int64)
        self.are_near = all(made is None or made.is_near for made in self._tables.values())


def _make_tables(shape: tuple[int, ...], strides: tuple[int, ...]) -> _Tables | None:
    """Return the tables of a layout; None if it is row-major."""
    sizes, steps = _merge_dimensions(shape, strides)
    if not steps or steps == [1]:
        return None
    first = len(sizes) - 1
    while first and np.prod(sizes[first:]) < _PERIOD:
        first -= 1
    # The last of several periods may lack rows, but only where a dimension before all others is
    # divided. Elsewhere all periods need to be whole.
    inner = int(np.prod(sizes[first + 1 :]))
    rows = sizes[first] if first else min(sizes[0], max(1, _PERIOD // inner))
    within = _add_offsets([rows, *sizes[first + 1 :]], steps[first:])
    counts = [*sizes[:first], -(-sizes[first] // rows)]
    periods = _add_offsets(counts, [*steps[:first], rows * steps[first]])
    some = within[:_PERIOD]
    lines = len(np.unique(some // _LINE))
    is_near = lines * _LINE <= _SPREAD * len(some) and within[-1] < 1 << 31
    return _Tables(within.astype(np.int32), periods, bool(is_near))


def _merge_dimensions(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """Return sizes and strides, with neighbours merged where memory walks both as one."""
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
    """Return the offsets of all indices of some dimensions, in row-major order."""
    offsets = np.zeros(1, np.int64)
    for size, step in zip(sizes, steps, strict=True):
        offsets = (offsets[:, None] + step * np.arange(size)).reshape(-1)
    return offsets

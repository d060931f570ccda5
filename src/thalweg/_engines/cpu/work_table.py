"""The work table: a step over any set of tensors as a list of chunks with raw addresses.

A chunk is a run of elements of one tensor, of about 64k elements. Chunks are shared out in slices,
which threads take one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from thalweg._engines.array_types import Int64, numbered

CHUNK = 1 << 16  # elements of a dense chunk
STEP = 256  # elements; every chunk but a tensor's last is a multiple of it
ENTRIES = 2**31 - 1  # of a sparse gradient; more do not fit the 32-bit numbers of its plan
SERIAL = 50_000  # elements below which a second thread costs more than it brings


@dataclass(eq=False)
class Table:
    """One launch's worth of work.

    Attributes:
        base: (tensors, streams) addresses of the first elements.
        chunks: (n, 4): tensor, offset of variable and slots, offset of the gradient, length; all
            counted in elements.
        bounds: (slices + 1,): slice k is the chunks bounds[k] to bounds[k + 1].
        scalar_row: (tensors,): which row of the scalars each tensor reads.
        elements: How many elements the chunks hold.
    """

    base: Int64
    chunks: Int64
    bounds: Int64
    scalar_row: Int64
    elements: int
    _argument: Int64 = field(init=False)

    def __post_init__(self) -> None:
        argument = np.zeros(11, np.int64)
        argument[1] = len(self.bounds) - 1
        argument[3] = self.bounds.ctypes.data
        argument[4] = self.chunks.ctypes.data
        argument[5] = self.base.ctypes.data
        argument[6] = self.scalar_row.ctypes.data
        self._argument = argument
        self._address = argument.ctypes.data

    def fill_argument(self, scalars: npt.NDArray[np.floating], flush: bool) -> int:
        """The address of the kernel's argument block, with the ticket counter at 0."""
        block = self._argument
        block[0] = 0
        block[2] = flush
        block[7] = scalars.__array_interface__["data"][0]  # the cheapest way to an address
        return self._address

    def copy_of_argument(self, flush: bool) -> Int64:
        """A block of its own, for whoever fills it without the table."""
        block = self._argument.copy()
        block[0], block[2] = 0, flush
        return block

    def fill_peak_argument(self, partial: Int64, column: int) -> int:
        """The argument block of a kernel for peaks, which fills one partial result per chunk."""
        block = self._argument
        block[0] = 0
        block[8] = partial.ctypes.data
        block[9] = self.base.shape[1]
        block[10] = column
        return self._address


def dense_chunks(sizes: Sequence[int], chunk: int = CHUNK) -> Int64:
    """Cut whole tensors of `sizes` elements into chunks; empty tensors give none."""
    extents = np.asarray(sizes, np.int64)
    counts = -(-extents // chunk)
    tensor, number = numbered(counts)
    chunks = np.empty((len(tensor), 4), np.int64)
    chunks[:, 0] = tensor
    chunks[:, 1] = chunks[:, 2] = number * chunk
    chunks[:, 3] = np.minimum(extents[tensor] - number * chunk, chunk)
    return chunks


def chunk_of(elements: int) -> int:
    """Elements per chunk of so much work: few chunks per thread cannot be shared out evenly."""
    return min(CHUNK, max(-(-elements // 32 // STEP) * STEP, CHUNK // 8))


def cut_slices(chunks: Int64, chunk: int = CHUNK) -> Int64:
    """Bounds of slices of about `chunk` elements.

    Args:
        chunks: (n, 4) chunks.
        chunk: Elements of a slice.
    """
    count = len(chunks)
    if not count:
        return np.zeros(1, np.int64)
    elements_before = np.cumsum(chunks[:, 3]) - chunks[:, 3]
    number = elements_before // chunk
    starts = np.empty(count, bool)
    starts[0] = True
    np.not_equal(number[1:], number[:-1], out=starts[1:])
    return np.append(np.flatnonzero(starts), count).astype(np.int64)


def make_table(base: Int64, chunks: Int64, bounds: Int64, scalar_row: Int64) -> Table:
    """A table whose arrays have the layout that kernels read."""
    return Table(
        np.ascontiguousarray(base, np.int64),
        np.ascontiguousarray(chunks, np.int64),
        np.ascontiguousarray(bounds, np.int64),
        np.ascontiguousarray(scalar_row, np.int64),
        int(chunks[:, 3].sum()),
    )

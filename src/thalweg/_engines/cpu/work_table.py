"""Work table: the tensors of a kernel launch, as chunks (ranges of elements) and raw addresses.

A chunk has about 64k elements of one tensor. Threads take slices of chunks, one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from thalweg._engines.array_types import Int64, enumerate_runs
from thalweg._engines.random_bits import ElementRuns

CHUNK = 1 << 16  # elements of a dense chunk
STEP = 256  # elements; every chunk but a tensor's last is a multiple of it
ENTRIES = 2**31 - 1  # of a sparse gradient; more do not fit the 32-bit numbers of its plan
# Words of the argument of a kernel.
TICKETS, SLICES, FLUSH, BOUNDS, CHUNKS, BASE, SCALAR_ROW, SCALARS = range(8)
SERIAL = 50_000  # elements below which a second thread costs more than it brings


@dataclass(eq=False)
class Table:
    """Work of one kernel launch; arrays are converted to contiguous int64.

    Attributes:
        base: (tensors, streams) addresses of the first elements.
        chunks: (n, 4): tensor, offset of variable and slots, offset of the gradient, length; all
            counted in elements.
        bounds: (slices + 1,): slice k is the chunks bounds[k] to bounds[k + 1].
        scalar_row: (tensors,): the row of scalars that each tensor reads.
        elements: The number of elements of all chunks.
    """

    base: Int64
    chunks: Int64
    bounds: Int64
    scalar_row: Int64
    elements: int = field(init=False)
    _argument: Int64 = field(init=False)

    def __post_init__(self) -> None:
        for name in ("base", "chunks", "bounds", "scalar_row"):
            setattr(self, name, np.ascontiguousarray(getattr(self, name), np.int64))
        self.elements = int(self.chunks[:, 3].sum())
        argument = np.zeros(11, np.int64)  # the last words are for `results`
        argument[SLICES] = len(self.bounds) - 1
        argument[BOUNDS] = self.bounds.ctypes.data
        argument[CHUNKS] = self.chunks.ctypes.data
        argument[BASE] = self.base.ctypes.data
        argument[SCALAR_ROW] = self.scalar_row.ctypes.data
        self._argument = argument
        self._address = argument.ctypes.data

    def fill_argument(self, scalars: npt.NDArray[np.floating], flush: bool, *results: int) -> int:
        """Write `flush` and the address of `scalars` to the kernel's argument; return its address.

        The caller must keep `scalars` alive until the launch is done.

        Args:
            results: Up to three further words of the argument, for a kernel that reduces.
        """
        block = self._argument
        # The threads of the last launch have incremented the word.
        block[TICKETS] = 0
        block[FLUSH] = flush
        # Faster than `ctypes.data`.
        block[SCALARS] = scalars.__array_interface__["data"][0]
        if results:
            block[SCALARS + 1 : SCALARS + 1 + len(results)] = results
        return self._address

    def copy_of_argument(self, flush: bool) -> Int64:
        """Return a copy of the kernel's argument with `flush`; native code fills in the scalars."""
        block = self._argument.copy()
        block[TICKETS], block[FLUSH] = 0, flush
        return block


def dense_chunks(sizes: Sequence[int], chunk: int = CHUNK) -> Int64:
    """Return the chunks, (n, 4) as in `Table`, of tensors with `sizes[i]` elements each."""
    extents = np.asarray(sizes, np.int64)
    counts = -(-extents // chunk)
    tensor, number = enumerate_runs(counts)
    chunks = np.empty((len(tensor), 4), np.int64)
    chunks[:, 0] = tensor
    chunks[:, 1] = chunks[:, 2] = number * chunk
    chunks[:, 3] = np.minimum(extents[tensor] - number * chunk, chunk)
    return chunks


def cut_at_runs(
    chunks: Int64, origins: Int64, runs: Sequence[ElementRuns | None]
) -> tuple[Int64, Int64]:
    """Divide chunks so that the elements of each chunk are adjacent in the full variable.

    Args:
        chunks: (n, 4) chunks of dense tensors.
        origins: (tensors,) the position of each tensor's first element in the full variable.
        runs: The positions of the elements of each tensor, or None if all are adjacent.

    Returns:
        The divided chunks, and the position of each chunk's first element. The chunks are `chunks`
        itself if no tensor has runs.
    """
    positions = origins[chunks[:, 0]] + chunks[:, 1]
    if not any(runs):
        return chunks, positions
    pieces: list[tuple[Int64, Int64]] = []
    for tensor, tensor_runs in enumerate(runs):
        of_tensor = chunks[:, 0] == tensor
        tensor_chunks, tensor_positions = chunks[of_tensor], positions[of_tensor]
        if tensor_runs is not None:
            ends = np.cumsum(tensor_runs.lengths)
            starts = ends - tensor_runs.lengths
            offsets = np.union1d(starts, tensor_chunks[:, 1])
            tensor_chunks = np.empty((len(offsets), 4), np.int64)
            tensor_chunks[:, 0] = tensor
            tensor_chunks[:, 1] = tensor_chunks[:, 2] = offsets
            tensor_chunks[:, 3] = np.diff(offsets, append=ends[-1])
            run = np.searchsorted(starts, offsets, "right") - 1
            tensor_positions = tensor_runs.firsts[run] + offsets - starts[run]
        pieces.append((tensor_chunks, tensor_positions))
    cut_chunks, cut_positions = zip(*pieces, strict=True)
    return np.concatenate(cut_chunks), np.concatenate(cut_positions)


def choose_chunk_size(elements: int) -> int:
    """Return the elements per chunk: at most `CHUNK`, fewer to balance the work of threads."""
    return min(CHUNK, max(-(-elements // 32 // STEP) * STEP, CHUNK // 8))


def cut_slices(chunks: Int64, chunk: int = CHUNK) -> Int64:
    """Divide chunks into slices, the units of work that threads take; return `Table.bounds`.

    Args:
        chunks: (n, 4) as in `Table`. A chunk is not divided.
        chunk: The approximate number of elements of a slice.
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

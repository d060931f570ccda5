"""Parallel reading of tensors with their checksums.

Copying from the system's cache into fresh memory costs more than the checksum. Both release the
GIL, so that two cores read twice as fast as one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from thalweg._formats.atomic_write import Progress
from thalweg._formats.checksum import combine_checksums, crc32c
from thalweg._formats.header import TensorHeader, check_sum
from thalweg.errors import DataLossError

_CACHED = 1 << 20  # bytes that stay in the cache between copy and checksum
_BATCH = 1 << 22  # bytes of one task of a thread
_SMALL_TOTAL = 1 << 25  # bytes that are not worth starting threads
_THREADS = 4


@dataclass(frozen=True)
class _Piece:
    """A range of bytes of one tensor: offset in the file, and destination or None."""

    name: str
    begin: int
    size: int
    memory: memoryview | None


def read_tensors(
    path: str,
    stream: BinaryIO,
    headers: Mapping[str, TensorHeader],
    buffers: Mapping[str, memoryview],
    progress: Progress | None,
) -> None:
    """Read tensors in file order into buffers, and verify the tensors' checksums.

    Args:
        path: The file, for messages.
        stream: The open file.
        headers: {name: description} of the tensors.
        buffers: {name: memory}; tensors without memory are only verified.
        progress: None, or `progress(bytes_read, total_bytes)` is called during reading.

    Raises:
        DataLossError: The file is too short, or a checksum differs from the stored checksum.
        OSError: The file cannot be read.
    """
    bytes_read, total = 0, sum(entry.bytes for entry in headers.values())
    totals = dict.fromkeys(headers, 0)

    batches = list(_batch_pieces(headers, buffers))
    read_batch = partial(_checksum_pieces, path, stream)
    # An error must not leave threads that read the file.
    with closing(_map_in_threads(read_batch, batches, total)) as batch_checksums:
        for batch, checksums in zip(batches, batch_checksums, strict=True):
            for piece, checksum in zip(batch, checksums, strict=True):
                name, entry = piece.name, headers[piece.name]
                if totals[name]:
                    checksum = combine_checksums(totals[name], checksum, piece.size)
                totals[name] = checksum
                bytes_read += piece.size
                if piece.begin + piece.size == entry.begin + entry.bytes:
                    check_sum(path, repr(name[:200]), entry.checksum, checksum)
            if progress is not None:
                progress(bytes_read, total)


def _batch_pieces(
    headers: Mapping[str, TensorHeader], buffers: Mapping[str, memoryview]
) -> Iterator[list[_Piece]]:
    """Yield lists of pieces of tensors in file order. The pieces of a list have 4 MiB together."""
    batch: list[_Piece] = []
    batch_size = 0
    for name, entry in sorted(headers.items(), key=lambda item: item[1].begin):
        offset, buffer = 0, buffers.get(name)
        # A tensor without elements, too, has a piece, so that its checksum is compared.
        while True:
            size = min(_BATCH - batch_size, entry.bytes - offset)
            memory = None if buffer is None else buffer[offset : offset + size]
            batch.append(_Piece(name, entry.begin + offset, size, memory))
            offset, batch_size = offset + size, batch_size + size
            if batch_size == _BATCH:
                yield batch
                batch, batch_size = [], 0
            if offset == entry.bytes:
                break
    if batch:
        yield batch


def _map_in_threads(
    work: Callable[[list[_Piece]], list[int]], batches: list[list[_Piece]], total: int
) -> Generator[list[int]]:
    """Yield `work(batch)` for all batches in order; use threads for a `total` above 32 MiB."""
    threads = min(_THREADS, _available_cores()) if hasattr(os, "preadv") else 1
    if threads == 1 or total <= _SMALL_TOTAL:
        yield from map(work, batches)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, batches)


def _available_cores() -> int:
    """Return the number of cores that this process may use."""
    get_affinity = getattr(os, "sched_getaffinity", None)
    return (len(get_affinity(0)) if get_affinity else os.cpu_count()) or 1


def _checksum_pieces(path: str, stream: BinaryIO, batch: list[_Piece]) -> list[int]:
    """Read the pieces of a batch into their memory, and return one checksum per piece."""
    scratch = memoryview(bytearray(_CACHED if any(piece.memory is None for piece in batch) else 0))
    checksums: list[int] = []
    for piece in batch:
        checksum = 0
        for begin in range(0, piece.size, _CACHED):
            size = min(_CACHED, piece.size - begin)
            memory = scratch[:size] if piece.memory is None else piece.memory[begin : begin + size]
            if not _read_into(stream, memory, piece.begin + begin):
                raise DataLossError(f"{path}: {piece.name[:200]!r}: The file ends within it.")
            checksum = crc32c(memory, checksum)
        checksums.append(checksum)
    return checksums


def _read_into(stream: BinaryIO, memory: memoryview, begin: int) -> bool:
    """Fill `memory` with bytes at offset `begin`; return False if the file is too short."""
    if not hasattr(os, "preadv"):
        stream.seek(begin)
        buffer = stream.read(len(memory))
        memory[: len(buffer)] = buffer
        return len(buffer) == len(memory)
    # `preadv` does not move the file's position, which threads share.
    while memory:
        count = os.preadv(stream.fileno(), [memory], begin)
        if not count:
            return False
        memory, begin = memory[count:], begin + count
    return True

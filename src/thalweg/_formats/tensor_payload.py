"""The bytes of tensors, read from a file and summed on the way, by several threads where it pays.

Copying from the system's cache into fresh memory costs more than the checksum. Both leave other
threads of Python alone, so that two cores read twice as fast as one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from thalweg._formats.checksum import combine_checksums, crc32c
from thalweg._formats.header import TensorHeader
from thalweg.errors import DataLossError

Progress = Callable[[int, int], None]

_CACHED = 1 << 20  # bytes that a cache holds from the copy to the sum
_BATCH = 1 << 22  # bytes for which it is worth to wake another thread
_FEW = 1 << 25  # bytes for which it is not worth to make threads
_THREADS = 4


@dataclass(frozen=True)
class _Piece:
    """Some bytes of one tensor: where they are, and where they are wanted, if anywhere."""

    name: str
    begin: int
    size: int
    memory: memoryview | None


def iterate_checksums(
    path: str,
    file: BinaryIO,
    wanted: Mapping[str, TensorHeader],
    rooms: Mapping[str, memoryview],
    progress: Progress | None,
) -> Generator[tuple[str, int]]:
    """Yield the checksums of tensors, in the order of the file, as soon as each has been read.

    Args:
        path: The file, for messages.
        file: The file.
        wanted: The tensors.
        rooms: Memory for them; what has none is read and forgotten.
        progress: Called with the number of bytes read so far, and with that of all to be read.

    Raises:
        DataLossError: The file ends too early.
        OSError: It cannot be read.
    """
    done, total = 0, sum(each.bytes for each in wanted.values())
    left = {name: each.bytes for name, each in wanted.items()}
    values = dict.fromkeys(wanted, 0)

    def checksum_batch(batch: list[_Piece]) -> list[int]:
        return _checksum_pieces(path, file, batch)

    batches = list(_batch_pieces(wanted, rooms))
    for batch, found in zip(batches, _map_in_threads(checksum_batch, batches, total), strict=True):
        for piece, value in zip(batch, found, strict=True):
            name, size = piece.name, piece.size
            values[name] = combine_checksums(values[name], value, size) if values[name] else value
            left[name] -= size
            done += size
            if not left[name]:
                yield name, values[name]
        if progress is not None:
            progress(done, total)


def _batch_pieces(
    wanted: Mapping[str, TensorHeader], rooms: Mapping[str, memoryview]
) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    held = 0
    for name, each in sorted(wanted.items(), key=lambda item: item[1].begin):
        place, room = 0, rooms.get(name)
        while True:
            size = min(_BATCH - held, each.bytes - place)
            memory = None if room is None else room[place : place + size]
            batch.append(_Piece(name, each.begin + place, size, memory))
            place, held = place + size, held + size
            if held == _BATCH:
                yield batch
                batch, held = [], 0
            if place == each.bytes:
                break
    if batch:
        yield batch


def _map_in_threads(
    work: Callable[[list[_Piece]], list[int]], batches: list[list[_Piece]], total: int
) -> Iterator[list[int]]:
    threads = min(_THREADS, _available_cores()) if hasattr(os, "preadv") else 1
    if threads == 1 or total <= _FEW:
        yield from map(work, batches)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, batches)


def _available_cores() -> int:
    look = getattr(os, "sched_getaffinity", None)
    return (len(look(0)) if look else os.cpu_count()) or 1


def _checksum_pieces(path: str, file: BinaryIO, batch: list[_Piece]) -> list[int]:
    """Read pieces; returns their checksums, each as if nothing came before it."""
    scratch = memoryview(bytearray(_CACHED if any(p.memory is None for p in batch) else 0))
    found: list[int] = []
    for piece in batch:
        value = 0
        for begin in range(0, piece.size, _CACHED):
            size = min(_CACHED, piece.size - begin)
            memory = scratch[:size] if piece.memory is None else piece.memory[begin : begin + size]
            if not _read_into(file, memory, piece.begin + begin):
                raise DataLossError(f"{path}: {piece.name[:200]!r}: The file ends within it.")
            value = crc32c(memory, value)
        found.append(value)
    return found


def _read_into(file: BinaryIO, memory: memoryview, begin: int) -> bool:
    """Read as many bytes as there is room for; False if the file has not so many."""
    if not hasattr(os, "preadv"):
        file.seek(begin)
        found = file.read(len(memory))
        memory[: len(found)] = found
        return len(found) == len(memory)
    while memory:
        count = os.preadv(file.fileno(), [memory], begin)
        if not count:
            return False
        memory, begin = memory[count:], begin + count
    return True

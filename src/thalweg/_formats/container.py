"""Our files: tensors and a document, each byte under a checksum. safetensors reads them, too."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, BinaryIO

from thalweg._formats import atomic_write, format_detection, header, tensor_payload
from thalweg._formats.checksum import crc32c
from thalweg._formats.header import Description, TensorHeader
from thalweg._formats.header_draft import Draft
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.errors import DataLossError, ThalwegError

__all__ = [
    "Contents",
    "Description",
    "TensorHeader",
    "describe",
    "is_container",
    "mapped",
    "read",
    "verify",
    "write",
]  # fmt: skip

Path = str | os.PathLike[str]
Progress = Callable[[int, int], None]

_POPULATE_READ = 22  # Linux' MADV_POPULATE_READ, which Python has no name for
_PIECE = 1 << 20  # bytes that a cache holds between two uses of them
_ALIGNED = 64  # bytes


@dataclass(frozen=True)
class Contents:
    """Contents of a file.

    Attributes:
        document: Plain JSON: dictionaries, lists, strings, numbers, booleans, None.
        tensors: Tensors by name.
    """

    document: dict[str, Any]
    tensors: dict[str, StoredTensor]


def write(
    path: Path,
    tensors: Mapping[str, StoredTensor],
    document: Mapping[str, object],
    progress: Progress | None = None,
) -> None:
    """Write a file in the place of the one that is there; see `disk.replace`.

    Tensors may change meanwhile: the checksums are those of the bytes that were written.

    Args:
        path: Where.
        tensors: Tensors by name.
        document: What JSON can hold.
        progress: Called with the number of bytes written so far, and with that of all.

    Raises:
        CheckpointWriteError: It cannot be written; what was there is as it was.
        InvalidArgumentError: A name, a tensor or the document cannot be in a file.
        InvalidTypeError: Likewise.
    """
    kept = dict(tensors)
    draft, checksums = Draft(kept, document), dict[str, int]()
    atomic_write.replace(
        path,
        _tensor_pieces(kept, draft.order, checksums),
        draft.room + sum(each.data.nbytes for each in kept.values()),
        progress,
        room=draft.room,
        head=lambda: draft.finish_header(checksums),
    )


def _tensor_pieces(
    tensors: Mapping[str, StoredTensor], order: list[str], checksums: dict[str, int]
) -> Iterator[memoryview]:
    """The bytes of all tensors; `checksums` are filled in on the way."""
    piece = memoryview(bytearray(_PIECE))
    for name in order:
        data, value = tensors[name].data, 0
        for begin in range(0, data.nbytes, _PIECE):
            size = min(_PIECE, data.nbytes - begin)
            # What is summed must be what is written, whatever other threads do to the tensor.
            piece[:size] = data[begin : begin + size]
            value = crc32c(piece[:size], value)
            yield piece[:size]
        checksums[name] = value


def read(
    path: Path, names: Container[str] | None = None, progress: Progress | None = None
) -> Contents:
    """Read a file, and verify every checksum of what is read.

    All tensors lie in one piece of memory, which is there for as long as one of them is.

    Args:
        path: The file.
        names: The tensors to read; by default all.
        progress: Called with the number of bytes read so far, and with that of all to be read.

    Raises:
        MissingFileError: There is no file.
        DataLossError: It is damaged.
        CheckpointMismatchError: Its two descriptions of the tensors differ.
        InvalidConfigError: Its document is no JSON that is read here.
        UnsupportedCheckpointError: It is of a newer version.
        InvalidArgumentError: It is no file but a folder, a device or a pipe.
    """
    given = os.fsdecode(path)
    with atomic_write.open_for_reading(path) as file:
        described = _read_description(given, file)
        wanted = _select_wanted(described, names)
        rooms = _allocate_rooms(wanted)
        _check_all(given, file, wanted, rooms, progress)
    tensors = {
        name: StoredTensor(each.dtype, each.shape, rooms[name]) for name, each in wanted.items()
    }
    return Contents(described.document, tensors)


def mapped(
    path: Path, names: Container[str] | None = None, progress: Progress | None = None
) -> Contents:
    """Read a file as `read` does, with the tensors left in the file: no memory is allocated for
    them.

    Every checksum is verified first. The file may be replaced afterwards, but not changed in place
    for as long as a tensor is used; what is written to a tensor does not reach the file.

    Raises:
        ThalwegError: As `read`.
    """
    given = os.fsdecode(path)
    with atomic_write.open_for_reading(path) as file:
        described = _read_description(given, file)
        wanted = _select_wanted(described, names)
        _check_all(given, file, wanted, {}, progress)
        try:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError:  # a file system that maps no files
            return read(path, names)
    if sys.platform == "linux":
        # An older Linux knows no such advice and comes to know of each page when it is read.
        with contextlib.suppress(OSError):
            pages.madvise(_POPULATE_READ)
    whole = memoryview(pages)
    tensors = {
        name: StoredTensor(each.dtype, each.shape, whole[each.begin : each.begin + each.bytes])
        for name, each in wanted.items()
    }
    return Contents(described.document, tensors)


def describe(path: Path) -> Description:
    """Return a file's description of itself; the header is verified, the tensors are not read.

    Raises:
        ThalwegError: As `read`.
    """
    with atomic_write.open_for_reading(path) as file:
        return _read_description(os.fsdecode(path), file)


def verify(path: Path, progress: Progress | None = None) -> Description:
    """Return the description that `describe` returns, after all of the file was read and verified.

    Raises:
        ThalwegError: As `read`.
    """
    given = os.fsdecode(path)
    with atomic_write.open_for_reading(path) as file:
        described = _read_description(given, file)
        _check_all(given, file, described.tensors, {}, progress)
        return described


def is_container(path: Path) -> bool:
    """Return True if a file begins as a thalweg file does; False where there is no file."""
    try:
        with atomic_write.open_for_reading(path) as file:
            return header.begins_like_ours(file.read(header.LENGTH + len(header.FIRST)))
    except (OSError, ThalwegError):
        return False


def _read_description(path: str, file: BinaryIO) -> Description:
    size = os.fstat(file.fileno()).st_size
    first = file.read(header.LENGTH)
    if not header.begins_like_ours(first + file.read(len(header.FIRST))):
        raise format_detection.refusal_error(path, file, "file of thalweg")
    length = int.from_bytes(first, "little")
    if length > header.LIMIT:
        raise DataLossError(f"{path}: Its header has {length} bytes; {header.LIMIT} are allowed.")
    if length + header.LENGTH > size:
        raise DataLossError(
            f"{path}: It is cut off, or its first bytes are damaged: it has {size} bytes, and its"
            f" header alone has {length + header.LENGTH}."
        )
    file.seek(header.LENGTH)
    text = file.read(length)
    if len(text) < length:
        raise DataLossError(f"{path}: It ends within its header.")
    return header.decode_header(path, first, text, size)


def _select_wanted(described: Description, names: Container[str] | None) -> dict[str, TensorHeader]:
    return {
        name: each for name, each in described.tensors.items() if names is None or name in names
    }


def _allocate_rooms(wanted: Mapping[str, TensorHeader]) -> dict[str, memoryview]:
    """Memory for tensors, each of which begins where vectors do.

    It is one piece: the system is faster with large ones, as it makes the pages larger, too.
    """
    import numpy as np

    sizes = {name: -(-each.bytes // _ALIGNED) * _ALIGNED for name, each in wanted.items()}
    whole = np.empty(sum(sizes.values()) + _ALIGNED, np.uint8)
    place, rooms = -whole.ctypes.data % _ALIGNED, dict[str, memoryview]()
    for name, each in wanted.items():
        rooms[name] = whole.data[place : place + each.bytes]
        place += sizes[name]
    return rooms


def _check_all(
    path: str,
    file: BinaryIO,
    wanted: Mapping[str, TensorHeader],
    rooms: Mapping[str, memoryview],
    progress: Progress | None,
) -> None:
    with closing(tensor_payload.iterate_checksums(path, file, wanted, rooms, progress)) as found:
        for name, value in found:
            header.check_sum(path, repr(name[:200]), wanted[name].checksum, value)

"""Container format of thalweg: a safetensors file with checksums and a JSON document."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from thalweg._formats import atomic_write, format_detection, header, tensor_payload
from thalweg._formats.atomic_write import Path, Progress
from thalweg._formats.checksum import crc32c
from thalweg._formats.header import Description, Draft, TensorHeader
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.errors import DataLossError, ThalwegError

_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux, which Python does not name
_PIECE = 1 << 20  # bytes that a cache holds between two uses of them
_ALIGNED = 64  # bytes


@dataclass(frozen=True)
class Contents:
    """Contents of a thalweg file.

    Attributes:
        document: Plain JSON: dictionaries, lists, strings, numbers, booleans, None.
        tensors: {name: tensor}.
    """

    document: dict[str, Any]
    tensors: dict[str, StoredTensor]


def write(
    path: Path,
    stored_tensors: Mapping[str, StoredTensor],
    document: Mapping[str, object],
    progress: Progress | None = None,
) -> None:
    """Write a file atomically; see `atomic_write.replace`.

    Other threads may change tensors meanwhile. The checksums match the bytes written.

    Args:
        path: The file.
        stored_tensors: {name: tensor}.
        document: A JSON object.
        progress: `progress(bytes_written, total_bytes)` is called during writing.

    Raises:
        CheckpointWriteError: The file cannot be written; an old file is unchanged.
        InvalidArgumentError: A name, a tensor or the document has a value that cannot be saved.
        InvalidTypeError: The document has a type that cannot be saved.
    """
    mapping = dict(stored_tensors)
    draft, checksums = Draft(mapping, document), dict[str, int]()
    atomic_write.replace(
        path,
        _tensor_pieces(mapping, draft.order, checksums),
        draft.reserved + sum(tensor.data.nbytes for tensor in mapping.values()),
        progress,
        reserved=draft.reserved,
        make_head=lambda: draft.finish_header(checksums),
    )


def _tensor_pieces(
    stored_tensors: Mapping[str, StoredTensor], order: list[str], checksums: dict[str, int]
) -> Iterator[memoryview]:
    """Yield the bytes of all tensors in pieces; add {name: checksum} to `checksums`."""
    piece = memoryview(bytearray(_PIECE))
    for name in order:
        view, checksum = stored_tensors[name].data, 0
        for begin in range(0, view.nbytes, _PIECE):
            size = min(_PIECE, view.nbytes - begin)
            # Other threads may write to the tensor between checksum and write.
            piece[:size] = view[begin : begin + size]
            checksum = crc32c(piece[:size], checksum)
            yield piece[:size]
        checksums[name] = checksum


def read(
    path: Path, names: Container[str] | None = None, progress: Progress | None = None
) -> Contents:
    """Read a file, and verify the checksums of the tensors read.

    The tensors share one allocation, which lives as long as any tensor.

    Args:
        path: The file.
        names: The tensors to read; by default all.
        progress: `progress(bytes_read, total_bytes)` is called during reading.

    Raises:
        MissingFileError: The file does not exist.
        DataLossError: The file is damaged.
        CheckpointMismatchError: The tensors in the header differ from those in the manifest.
        InvalidConfigError: The document is not valid JSON.
        UnsupportedCheckpointError: The file has a newer version.
        InvalidArgumentError: The path is a directory, a device or a pipe.
    """
    file_path = os.fsdecode(path)
    with atomic_write.open_for_reading(path) as stream:
        description = _read_description(file_path, stream)
        headers = {
            name: entry
            for name, entry in description.tensors.items()
            if names is None or name in names
        }
        buffers = _allocate_buffers(headers)
        tensor_payload.read_tensors(file_path, stream, headers, buffers, progress)
    tensors = {
        name: StoredTensor(entry.dtype, entry.shape, buffers[name])
        for name, entry in headers.items()
    }
    return Contents(description.document, tensors)


def mapped(path: Path, progress: Progress | None = None) -> Contents:
    """Verify a file as `read` does, and return memory-mapped tensors instead of copies.

    If the file system cannot map files, return copies. While a mapped tensor is in use, the file
    may be replaced, but must not be changed in place. Writes to a tensor do not reach the file.
    Errors are those of `read`.
    """
    file_path = os.fsdecode(path)
    with atomic_write.open_for_reading(path) as stream:
        description = _read_description(file_path, stream)
        tensor_payload.read_tensors(file_path, stream, description.tensors, {}, progress)
        # With ACCESS_COPY, a write to a tensor changes a private copy of the page.
        try:
            pages = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError:  # Some file systems cannot map files.
            return read(path)
    if sys.platform == "linux":
        # Older kernels lack this advice, and load each page at its first use.
        with contextlib.suppress(OSError):
            pages.madvise(_POPULATE_READ)
    view = memoryview(pages)
    tensors = {
        name: StoredTensor(entry.dtype, entry.shape, view[entry.begin : entry.begin + entry.bytes])
        for name, entry in description.tensors.items()
    }
    return Contents(description.document, tensors)


def describe(path: Path) -> Description:
    """Return the description of a file; only the header is read and verified.

    Errors are those of `read`.
    """
    with atomic_write.open_for_reading(path) as stream:
        return _read_description(os.fsdecode(path), stream)


def verify(path: Path, progress: Progress | None = None) -> Description:
    """Read a file completely, verify all checksums, and return its description.

    Errors are those of `read`.
    """
    file_path = os.fsdecode(path)
    with atomic_write.open_for_reading(path) as stream:
        description = _read_description(file_path, stream)
        tensor_payload.read_tensors(file_path, stream, description.tensors, {}, progress)
        return description


def is_container(path: Path) -> bool:
    """Return True if a file begins like a thalweg file; False if there is no file."""
    try:
        with atomic_write.open_for_reading(path) as stream:
            return header.begins_like_ours(stream.read(header.LENGTH + len(header.FIRST)))
    except (OSError, ThalwegError):
        return False


def _read_description(path: str, stream: BinaryIO) -> Description:
    """Read and validate the header of a file opened at its beginning."""
    size = os.fstat(stream.fileno()).st_size
    first = stream.read(header.LENGTH)
    if not header.begins_like_ours(first + stream.read(len(header.FIRST))):
        raise format_detection.refusal_error(path, stream, "file of thalweg")
    length = int.from_bytes(first, "little")
    # No checksum protects the length before the header is read.
    if length > header.LIMIT:
        raise DataLossError(f"{path}: Its header has {length} bytes; {header.LIMIT} are allowed.")
    if length + header.LENGTH > size:
        raise DataLossError(
            f"{path}: It is cut off, or its first bytes are damaged: it has {size} bytes, and its"
            f" header alone has {length + header.LENGTH}."
        )
    stream.seek(header.LENGTH)
    text = stream.read(length)
    if len(text) < length:
        raise DataLossError(f"{path}: It ends within its header.")
    return header.decode_header(path, first, text, size)


def _allocate_buffers(headers: Mapping[str, TensorHeader]) -> dict[str, memoryview]:
    """Return {name: aligned memory} for tensors, in one allocation.

    For a large allocation the system uses larger pages, which is faster.
    """
    import numpy as np

    sizes = {name: -(-entry.bytes // _ALIGNED) * _ALIGNED for name, entry in headers.items()}
    memory = np.empty(sum(sizes.values()) + _ALIGNED, np.uint8)
    offset, buffers = -memory.ctypes.data % _ALIGNED, dict[str, memoryview]()
    for name, entry in headers.items():
        buffers[name] = memory.data[offset : offset + entry.bytes]
        offset += sizes[name]
    return buffers

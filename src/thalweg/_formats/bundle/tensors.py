"""Tensors and strings of a TensorFlow checkpoint, read from data files with checksums."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from thalweg._formats.atomic_write import Progress
from thalweg._formats.bundle import object_graph, slices
from thalweg._formats.bundle.checkpoint_directory import File, Folder
from thalweg._formats.bundle.contents import NAMES, STRING, Bundle
from thalweg._formats.bundle.errors import (
    CorruptFileError,
    check_checksum,
    locate_flaws,
    quote_name,
)
from thalweg._formats.bundle.index import Index, IndexedTensor
from thalweg._formats.bundle.messages import BundleEntry
from thalweg._formats.bundle.object_graph import ObjectGraph
from thalweg._formats.bundle.proto import encode_varint, read_varint
from thalweg._formats.checksum import crc32c, mask_checksum
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor

if TYPE_CHECKING:
    import numpy as np

_MAX_SHORT = 1 << 32


def decode_strings(content: bytes, count: int) -> tuple[list[bytes], int]:
    """Return (strings, checksum) of a tensor with the bytes `content` and `count` strings.

    The caller compares the checksum with the tensor's entry in the index. Raise CorruptFileError if
    the lengths are damaged, or the number of bytes is wrong.
    """
    lengths: list[int] = []
    offset, end = 0, len(content)
    for _ in range(count):
        length, offset = read_varint(content, offset, end)
        lengths.append(length)
    begin = offset + 4
    if begin + sum(lengths) != end:
        raise CorruptFileError(
            f"{count} strings with {sum(lengths)} bytes do not fit into its {end} bytes"
        )
    calculated = _checksum_of_lengths(lengths)
    check_checksum(int.from_bytes(content[offset:begin], "little"), calculated)
    strings: list[bytes] = []
    position = begin
    for length in lengths:
        strings.append(content[position : position + length])
        position += length
    return strings, crc32c(memoryview(content)[offset:], calculated)


def encoded_strings(strings: Sequence[bytes]) -> tuple[bytes, int]:
    """Return (bytes with the lengths, their checksum and the strings; checksum of these bytes)."""
    lengths = [len(string) for string in strings]
    checksum = _checksum_of_lengths(lengths)
    tail = mask_checksum(checksum).to_bytes(4, "little") + b"".join(strings)
    return b"".join(map(encode_varint, lengths)) + tail, crc32c(tail, checksum)


def _checksum_of_lengths(lengths: Sequence[int]) -> int:
    """Return the checksum of lengths, each of four bytes, or of eight if necessary."""
    widths = [4 if length < _MAX_SHORT else 8 for length in lengths]
    return crc32c(b"".join(n.to_bytes(width, "little") for n, width in zip(lengths, widths)))


class BundleReader:
    """Reader of some tensors of a bundle.

    Args:
        directory: The directory of the files.
        index: The index.
        requested: {name: tensor} to read.
        progress: None, or `progress(bytes_read, total_bytes)` is called during reading.
    """

    def __init__(
        self,
        directory: Folder,
        index: Index,
        requested: dict[str, IndexedTensor],
        progress: Progress | None,
    ) -> None:
        self._directory = directory
        self._index = index
        self._requested = requested
        self._progress = progress
        self._bytes_read = 0
        self._total = sum(tensor.size for tensor in requested.values())

    def read_bundle(self) -> Bundle:
        """Read the requested tensors, strings and object graph."""
        tensors: dict[str, StoredTensor] = {}
        texts: dict[str, list[bytes]] = {}
        for name in sorted(self._requested, key=self._place_of):
            tensor = self._requested[name]
            with locate_flaws(quote_name(name)):
                if tensor.dtype == STRING:
                    texts[name] = self._read_strings(tensor)
                else:
                    tensors[name] = self._read_tensor(tensor)
        graphs = texts.pop(object_graph.KEY, None)
        ordered_tensors = {name: tensors[name] for name in self._requested if name in tensors}
        return Bundle(ordered_tensors, texts, None if graphs is None else _decode_graph(graphs))

    def _place_of(self, name: str) -> tuple[int, int]:
        """Return (shard, offset) of a tensor, a sort key to read files from start to end."""
        return min((entry.shard, entry.offset) for _, entry in self._requested[name].pieces)

    def _read_tensor(self, tensor: IndexedTensor) -> StoredTensor:
        """Read a tensor, and join its slices."""
        kind = NAMES[tensor.dtype]
        for _, entry in tensor.pieces:
            self._open_shard_of(entry)
        boxes = [(origin, entry.shape) for origin, entry in tensor.pieces]
        contents = (self._read_part(entry) for _, entry in tensor.pieces)
        content = slices.join_parts(boxes, contents, tensor.shape, ITEM_BYTES[kind])
        if kind == "BOOL" and content.size and content.max() > 1:
            raise CorruptFileError(f"it is bool and has bytes up to {content.max()}")
        return StoredTensor(kind, tensor.shape, content.data)

    def _read_part(self, entry: BundleEntry) -> np.ndarray[Any, Any]:
        """Return the bytes of a slice; raise CorruptFileError if the checksum differs."""
        import numpy as np

        content = np.empty(entry.size, np.uint8)
        self._open_shard_of(entry).read_into(entry.offset, content.data)
        check_checksum(entry.checksum, crc32c(content.data))
        self._report_progress(entry.size)
        return content

    def _read_strings(self, tensor: IndexedTensor) -> list[bytes]:
        """Return the strings of a tensor; raise CorruptFileError if a checksum differs."""
        ((_, entry),) = tensor.pieces
        content = self._open_shard_of(entry).read(entry.offset, entry.size)
        texts, calculated = decode_strings(content, prod(tensor.shape))
        check_checksum(entry.checksum, calculated)
        self._report_progress(len(content))
        return texts

    def _open_shard_of(self, entry: BundleEntry) -> File:
        """Return the open data file of a slice; raise CorruptFileError if the file is too short."""
        file = self._directory.open_shard(self._index.suffix(entry.shard))
        if entry.offset + entry.size > file.size:
            raise CorruptFileError(
                f"it lies from {entry.offset} to {entry.offset + entry.size} in"
                f" {self._index.suffix(entry.shard)}, which has {file.size} bytes: that is cut off,"
                " or not of this index"
            )
        return file

    def _report_progress(self, count: int) -> None:
        """Add `count` to the bytes read and call `progress`."""
        self._bytes_read += count
        if self._progress is not None:
            self._progress(self._bytes_read, self._total)


def _decode_graph(graphs: list[bytes]) -> ObjectGraph:
    """Return the object graph; raise CorruptFileError unless `graphs` is one valid string."""
    with locate_flaws(quote_name(object_graph.KEY)):
        if len(graphs) != 1:
            raise CorruptFileError(f"it has {len(graphs)} strings")
        return object_graph.decode_graph(graphs[0])

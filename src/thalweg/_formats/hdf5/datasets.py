"""Datasets: layout and elements of an array, with the filters of its chunks.

The filters are deflate and shuffle of HDF5, and LZF of h5py. Others are plugins, never called.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Mapping

import numpy as np

from thalweg._formats.hdf5 import headers
from thalweg._formats.hdf5.attributes import TextAttribute, parse_elements, parse_shape
from thalweg._formats.hdf5.headers import HeaderMessage
from thalweg._formats.hdf5.trees import iterate_leaves
from thalweg._formats.source import FilePart, SourceFile
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.errors import UnsafeCheckpointError

DEFLATE, SHUFFLE, LZF = 1, 2, 32000
_MAX_FILTERS = 8  # filters of a dataset
_FILTER_NAMES = {
    3: "fletcher32",
    4: "szip",
    5: "nbit",
    6: "scaleoffset",
    307: "bzip2",
    32001: "blosc",
}


def filter_pipeline(payload: FilePart) -> list[int]:
    """Return the ids of the filters in a message; the first was applied first.

    Raise UnsupportedCheckpointError if a filter is not supported.
    """
    source = payload.source
    version = payload.take_version((1, 2), "filters")
    count = payload.take_number(1)
    payload.take(6 if version == 1 else 0)
    filter_ids: list[int] = []
    if count > _MAX_FILTERS:
        raise source.data_loss_error(payload.offset, f"{count} filters")
    for _ in range(count):
        begin, filter_id = payload.offset, payload.take_number(2)
        length = payload.take_number(2) if version == 1 or filter_id >= 256 else 0
        payload.take(2)
        value_count = payload.take_number(2)
        payload.take(length + (-length % 8 if version == 1 else 0))
        payload.take(4 * (value_count + (value_count & 1 if version == 1 else 0)))
        if filter_id not in (DEFLATE, SHUFFLE, LZF):
            name = f" ({_FILTER_NAMES[filter_id]})" if filter_id in _FILTER_NAMES else ""
            text = f"filter {filter_id}{name} is not read; copy the file with `h5repack -f NONE`"
            raise source.unsupported_error(begin, text)
        filter_ids.append(filter_id)
    return filter_ids


def undo_filters(
    source: SourceFile, offset: int, stored: memoryview, filters: list[int], size: int, width: int
) -> bytes | memoryview:
    """Return the bytes of a chunk after undoing its filters.

    Args:
        source: The file.
        offset: The offset of the chunk, for errors.
        stored: The stored bytes.
        filters: The ids of the filters that were applied.
        size: The number of bytes that the result must have.
        width: The number of bytes of an element.

    Raises:
        DataLossError: A filter cannot be undone, or the size differs.
    """
    decoded: bytes | memoryview = stored
    for filter_id in reversed(filters):
        if filter_id == DEFLATE:
            decoded = _inflate_chunk(source, offset, decoded, size)
        elif filter_id == LZF:
            decoded = _decompress_lzf(source, offset, bytes(decoded), size)
        elif len(decoded) % width == 0:
            planes = np.frombuffer(decoded, np.uint8).reshape(width, -1)
            decoded = planes.T.tobytes()
    if len(decoded) != size:
        raise source.data_loss_error(
            offset, f"a chunk has {len(decoded)} bytes and should have {size}"
        )
    return decoded


def _inflate_chunk(
    source: SourceFile, offset: int, compressed: bytes | memoryview, size: int
) -> bytes:
    """Return a decompressed chunk; raise DataLossError if it is damaged or longer than `size`."""
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(compressed, size + 1)
    except zlib.error as error:
        raise source.data_loss_error(offset, f"a chunk cannot be inflated: {error}") from error
    if not stream.eof:
        raise source.data_loss_error(offset, f"a chunk does not end after {size} bytes")
    return inflated


def _decompress_lzf(source: SourceFile, offset: int, compressed: bytes, size: int) -> bytes:
    """Return decompressed bytes: runs of literal bytes, and copies of earlier bytes.

    A control byte below 32 is the number of literal bytes minus 1. In a greater control byte, the
    upper three bits are the length of a copy minus 2; if they are 7, the next byte is added. The
    lower five bits and the next byte are the distance to the copied bytes minus 1.
    """
    decoded, position = bytearray(), 0
    try:
        while position < len(compressed) and len(decoded) <= size:
            control = compressed[position]
            position += 1
            if control < 32:
                if position + control >= len(compressed):
                    raise IndexError
                decoded += compressed[position : position + control + 1]
                position += control + 1
                continue
            length = control >> 5
            if length == 7:
                length += compressed[position]
                position += 1
            begin = len(decoded) - ((control & 31) << 8) - compressed[position] - 1
            position += 1
            if begin < 0:
                raise IndexError
            for index in range(begin, begin + length + 2):
                decoded.append(decoded[index])
    except IndexError as error:
        raise source.data_loss_error(offset, "a chunk cannot be expanded") from error
    return bytes(decoded)


RATIO = 1032  # the best compression ratio of deflate
_MAX_ELEMENTS = 2**60  # counted with extents of 0 as 1
_COMPACT, _CONTIGUOUS, _CHUNKED, _VIRTUAL = range(4)


class ArrayDataset:
    """An array of a file, read on demand.

    Args:
        source: The file.
        name: The path.
        messages: The messages of the dataset's header.
        attributes: The attributes.

    Attributes:
        name: The path.
        attributes: {name: attribute}.
        elements: The type of the elements.
        shape: The shape.

    Raises:
        UnsafeCheckpointError: The elements are in other files, or references.
        UnsupportedCheckpointError: The elements are not numbers, or were filtered by a plugin.
    """

    def __init__(
        self,
        source: SourceFile,
        name: str,
        messages: list[HeaderMessage],
        attributes: Mapping[str, TextAttribute],
    ) -> None:
        self.name, self.attributes, self._source = name, attributes, source
        payloads = dict(reversed(messages))
        if headers.EXTERNAL_FILES in payloads:
            payload = payloads[headers.EXTERNAL_FILES]
            raise self._unsafe_error(payload, "elements are in other files")
        self._layout = payloads[headers.LAYOUT]
        prefix = bytes(self._layout.data[:2])
        if prefix[:1] >= b"\4" and prefix[1:] == bytes([_VIRTUAL]):
            raise self._unsafe_error(self._layout, "a virtual dataset, elements are in other files")
        begin = self._layout.offset
        if headers.DATATYPE not in payloads or headers.DATASPACE not in payloads:
            raise source.data_loss_error(begin, f"{name!r} has no type or no shape")
        self.elements = parse_elements(payloads[headers.DATATYPE])
        shape = parse_shape(payloads[headers.DATASPACE])
        self._filters: list[int] = []
        if headers.FILTERS in payloads:
            self._filters = filter_pipeline(payloads[headers.FILTERS])
        self.shape = (0,) if shape is None else shape
        self._count = math.prod(self.shape)
        if math.prod(extent or 1 for extent in self.shape) >= _MAX_ELEMENTS:
            raise source.data_loss_error(begin, f"{name!r} has the shape {self.shape}")

    def _unsafe_error(self, payload: FilePart, text: str) -> UnsafeCheckpointError:
        """Return the error about elements outside of the file."""
        return self._source.unsafe_error(payload.offset, f"{self.name!r}: {text}")

    def read(self, dtype: str | None = None) -> StoredTensor:
        """Return the array in little-endian byte order.

        Args:
            dtype: The dtype of opaque elements; ignored for other elements.

        Raises:
            DataLossError: Elements are missing.
            UnsupportedCheckpointError: The elements are not numbers, or the layout needs HDF5 1.10.
        """
        kind = self.elements
        if kind.dtype in ("string", "text") or (kind.dtype == "opaque" and dtype is None):
            text = f"{self.name!r} has elements that are no numbers"
            raise self._source.unsupported_error(self._layout.offset, text)
        buffer = self._read_data(self._count * kind.size)
        if kind.is_big_endian:
            native = np.frombuffer(buffer, f">u{kind.size}").astype(f"<u{kind.size}")
            buffer = native.data.cast("B")
        if kind.dtype == "BOOL" and np.frombuffer(buffer, np.uint8).max(initial=0) > 1:
            raise self._source.data_loss_error(
                self._layout.offset, f"{self.name!r} has no booleans"
            )
        return StoredTensor(
            dtype if dtype and kind.dtype == "opaque" else kind.dtype, self.shape, buffer
        )

    def _read_data(self, size: int) -> memoryview:
        """Return all elements, `size` bytes, from a compact, contiguous or chunked layout."""
        payload, source = self._layout, self._source
        begin = payload.offset
        version = payload.take_version((3, 4, 5), "layouts")
        kind = payload.take_number(1)
        if kind == _COMPACT:
            elements = payload.take_part(payload.take_number(2)).data
            if len(elements) != size:
                raise self._size_error(size, len(elements))
            return elements
        if kind == _CONTIGUOUS:
            address, stored_size = payload.take_address(), payload.take_number(8)
            if not size:
                return memoryview(b"")
            if address is None or stored_size != size:
                raise self._size_error(size, 0 if address is None else stored_size)
            source.visit_once(address, f"the elements of {self.name!r}")
            return source.read_part(address, size, f"{self.name!r}").data
        if kind != _CHUNKED:
            raise source.data_loss_error(begin, f"{self.name!r} has a layout of class {kind}")
        if version == 3:
            return self._read_chunked(payload, size)
        text = f"{self.name!r} has chunks as HDF5 1.10 stores them"
        raise source.unsupported_error(begin, f"{text}; copy the file with `h5repack -l CONTI`")

    def _size_error(self, size: int, stored_size: int) -> Exception:
        """Return the error about missing bytes."""
        text = f"{self.name!r} should have {size} bytes, and {stored_size} are stored"
        return self._source.data_loss_error(self._layout.offset, text)

    def _read_chunked(self, payload: FilePart, size: int) -> memoryview:
        """Return all elements, `size` bytes, from chunks. Chunks are clipped to the array."""
        source, shape, width = self._source, self.shape, self.elements.size
        begin, rank = payload.offset, payload.take_number(1) - 1
        tree = payload.take_address()
        chunk = tuple(payload.take_number(4) for _ in range(max(rank, 0)))
        if rank != len(shape) or not rank or payload.take_number(4) != width or 0 in chunk:
            raise source.data_loss_error(
                begin, f"{self.name!r} of shape {shape} has chunks of {chunk}"
            )
        if not size:
            return memoryview(b"")
        counts = [-(-extent // step) for extent, step in zip(shape, chunk, strict=True)]
        if tree is None:
            raise self._size_error(size, 0)
        chunks = list(iterate_leaves(source, tree, kind=1, width=8 + 8 * (rank + 1)))
        if len(chunks) != math.prod(counts):
            text = f"{self.name!r} has {len(chunks)} chunks and should have {math.prod(counts)}"
            raise source.data_loss_error(begin, text)
        chunk_size = math.prod(chunk) * width
        stored_size = sum(int.from_bytes(key.data[:4], "little") for key, _ in chunks)
        # Checked before memory is allocated: a small file must not cause a huge allocation.
        if stored_size > source.size or max(size, len(chunks) * chunk_size) > RATIO * stored_size:
            raise self._size_error(size, stored_size)
        array = np.empty(shape, f"V{width}")
        indices = itertools.product(*(range(count) for count in counts))
        for (key, address), index_tuple in zip(chunks, indices, strict=True):
            corner = tuple(index * step for index, step in zip(index_tuple, chunk, strict=True))
            block = self._read_chunk(key, address, corner, chunk_size)
            ends = (start + step for start, step in zip(corner, chunk, strict=True))
            region = array[tuple(map(slice, corner, ends))]
            # The region of a chunk at the end of an axis is smaller than the chunk.
            clipped = tuple(map(slice, region.shape))
            region[...] = np.frombuffer(block, f"V{width}").reshape(chunk)[clipped]
        return array.view(np.uint8).reshape(-1).data

    def _read_chunk(
        self, key: FilePart, address: int, corner: tuple[int, ...], size: int
    ) -> memoryview:
        """Return the `size` bytes of the chunk whose first element is at index `corner`.

        `key` is the chunk's key in the tree: stored size, filter mask and corner. The stored bytes
        are at `address`; filters are undone.
        """
        source, begin = self._source, key.offset
        stored_size, mask = key.take_number(4), key.take_number(4)
        stored_corner = tuple(key.take_number(8) for _ in corner)
        if stored_corner != corner:
            raise source.data_loss_error(
                begin, f"{self.name!r} has a chunk at {stored_corner} and not at {corner}"
            )
        source.visit_once(address, f"a chunk of {self.name!r}")
        compressed = source.read_part(address, stored_size, f"a chunk of {self.name!r}").data
        # A set bit marks a filter that was not applied to this chunk.
        used = [filter_id for bit, filter_id in enumerate(self._filters) if not mask >> bit & 1]
        decoded = undo_filters(source, address, compressed, used, size, self.elements.size)
        return memoryview(decoded)

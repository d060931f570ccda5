"""Inverse filters for chunks of a dataset.

HDF5's deflate and shuffle, and h5py's LZF. Others are plugins, and are never called.
"""

from __future__ import annotations

import zlib

import numpy as np

from thalweg._formats.source import FilePart, SourceFile

DEFLATE, SHUFFLE, LZF = 1, 2, 32000
_MAX_FILTERS = 8  # filters of a dataset
_TITLES = {3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 307: "bzip2", 32001: "blosc"}


def filter_pipeline(payload: FilePart) -> list[int]:
    """Return the numbers of the filters in a message, in the order in which they were applied.

    Raises:
        UnsupportedCheckpointError: A filter is not supported.
    """
    source = payload.source
    version = payload.take_version((1, 2), "filters")
    count = payload.take_number(1)
    payload.take(6 if version == 1 else 0)
    numbers: list[int] = []
    if count > _MAX_FILTERS:
        raise source.data_loss_error(payload.offset, f"{count} filters")
    for _ in range(count):
        begin, number = payload.offset, payload.take_number(2)
        length = payload.take_number(2) if version == 1 or number >= 256 else 0
        payload.take(2)
        value_count = payload.take_number(2)
        payload.take(length + (-length % 8 if version == 1 else 0))
        payload.take(4 * (value_count + (value_count & 1 if version == 1 else 0)))
        if number not in (DEFLATE, SHUFFLE, LZF):
            title = f"{number} ({_TITLES[number]})" if number in _TITLES else f"{number}"
            text = f"filter {title} is not read; copy the file with `h5repack -f NONE`"
            raise source.unsupported_error(begin, text)
        numbers.append(number)
    return numbers


def undo_filters(
    source: SourceFile, offset: int, stored: memoryview, filters: list[int], size: int, width: int
) -> bytes | memoryview:
    """Return a chunk with its filters undone.

    Args:
        source: The file.
        offset: The offset of the chunk, for errors.
        stored: The stored bytes.
        filters: The filters that were applied.
        size: The required number of bytes.
        width: The number of bytes of an element.

    Raises:
        DataLossError: A filter cannot be undone, or the size differs.
    """
    decoded: bytes | memoryview = stored
    for number in reversed(filters):
        if number == DEFLATE:
            decoded = _inflate_chunk(source, offset, decoded, size)
        elif number == LZF:
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
    """Return decompressed bytes; raise DataLossError if damaged or more than `size`."""
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(compressed, size + 1)
    except zlib.error as error:
        raise source.data_loss_error(offset, f"a chunk cannot be inflated: {error}") from error
    if not stream.eof:
        raise source.data_loss_error(offset, f"a chunk does not end after {size} bytes")
    return inflated


def _decompress_lzf(source: SourceFile, offset: int, compressed: bytes, size: int) -> bytes:
    """Return decompressed bytes: runs of literal bytes, and copies of earlier ones.

    A control byte below 32 is the number of literal bytes, less one. Else its upper three bits are
    the length of a copy, less two (7: the next byte is added), and the rest how far back it begins.
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
            for number in range(begin, begin + length + 2):
                decoded.append(decoded[number])
    except IndexError as error:
        raise source.data_loss_error(offset, "a chunk cannot be expanded") from error
    return bytes(decoded)

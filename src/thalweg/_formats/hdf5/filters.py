"""Inverse filters for chunks of a dataset.

HDF5's deflate and shuffle, and h5py's LZF. Others are code of their own, and are not called.
"""

from __future__ import annotations

import zlib

import numpy as np

from thalweg._formats.source import FilePart, SourceFile

DEFLATE, SHUFFLE, LZF = 1, 2, 32000
_MOST = 8  # filters of a dataset
_TITLES = {3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 307: "bzip2", 32001: "blosc"}


def filter_pipeline(body: FilePart) -> list[int]:
    """Return the numbers of the filters, in the order in which they were applied.

    Raises:
        UnsupportedCheckpointError: One is none of the three.
    """
    source = body.source
    version = body.take_version((1, 2), "filters")
    count = body.take_number(1)
    body.take(6 if version == 1 else 0)
    found: list[int] = []
    if count > _MOST:
        raise source.data_loss_error(body.offset, f"{count} filters")
    for _ in range(count):
        begin, number = body.offset, body.take_number(2)
        length = body.take_number(2) if version == 1 or number >= 256 else 0
        body.take(2)
        values = body.take_number(2)
        body.take(length + (-length % 8 if version == 1 else 0))
        body.take(4 * (values + (values & 1 if version == 1 else 0)))
        if number not in (DEFLATE, SHUFFLE, LZF):
            title = f"{number} ({_TITLES[number]})" if number in _TITLES else f"{number}"
            text = f"filter {title} is not read; copy the file with `h5repack -f NONE`"
            raise source.unsupported_error(begin, text)
        found.append(number)
    return found


def undo_filters(
    source: SourceFile, offset: int, data: memoryview, filters: list[int], size: int, width: int
) -> bytes | memoryview:
    """Return a chunk as it was.

    Args:
        source: The file.
        offset: Where the chunk is, for errors.
        data: Its bytes as they are stored.
        filters: What they went through.
        size: How many bytes it has to have.
        width: How many bytes an element has.

    Raises:
        DataLossError: It cannot be undone, or has another size.
    """
    found: bytes | memoryview = data
    for number in reversed(filters):
        if number == DEFLATE:
            found = _inflate_chunk(source, offset, found, size)
        elif number == LZF:
            found = _decompress_lzf(source, offset, bytes(found), size)
        elif len(found) % width == 0:
            planes = np.frombuffer(found, np.uint8).reshape(width, -1)
            found = planes.T.tobytes()
    if len(found) != size:
        raise source.data_loss_error(
            offset, f"a chunk has {len(found)} bytes and should have {size}"
        )
    return found


def _inflate_chunk(source: SourceFile, offset: int, data: bytes | memoryview, size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, size + 1)
    except zlib.error as error:
        raise source.data_loss_error(offset, f"a chunk cannot be inflated: {error}") from error
    if not stream.eof:
        raise source.data_loss_error(offset, f"a chunk does not end after {size} bytes")
    return found


def _decompress_lzf(source: SourceFile, offset: int, data: bytes, size: int) -> bytes:
    """What LZF made smaller: runs of bytes, and copies of what came before.

    A control byte below 32 says how many bytes follow, less one. Else its upper three bits are the
    length of a copy, less two (7: the next byte is added), and the rest how far back it begins.
    """
    found, place = bytearray(), 0
    try:
        while place < len(data) and len(found) <= size:
            control = data[place]
            place += 1
            if control < 32:
                if place + control >= len(data):
                    raise IndexError
                found += data[place : place + control + 1]
                place += control + 1
                continue
            length = control >> 5
            if length == 7:
                length += data[place]
                place += 1
            begin = len(found) - ((control & 31) << 8) - data[place] - 1
            place += 1
            if begin < 0:
                raise IndexError
            for number in range(begin, begin + length + 2):
                found.append(found[number])
    except IndexError as error:
        raise source.data_loss_error(offset, "a chunk cannot be expanded") from error
    return bytes(found)

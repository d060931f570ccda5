"""Sorted tables, as LevelDB defines them and TensorFlow uses for indices.

https://github.com/google/leveldb/blob/main/doc/table_format.md. A table is a sequence of blocks:
those of data, a metadata block, which is empty here, and one that lists the blocks of data. Behind
each is a byte for its compression, and four with the CRC32C of all before. The last 48 bytes have
the locations of the last two blocks.

In a block, each key omits the prefix that it shares with the previous key. Every few keys, one is
stored completely; the offsets of these are listed at the end of the block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

from thalweg._formats.bundle.errors import (
    CorruptFileError,
    check_checksum,
    locate_flaws,
    quote_name,
)
from thalweg._formats.bundle.proto import encode_varint, read_varint
from thalweg._formats.checksum import crc32c, mask_checksum
from thalweg.errors import UnsupportedCheckpointError

Read = Callable[[int, int], bytes]  # offset and size to bytes

FOOTER = 48
_MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
_HANDLES = FOOTER - len(_MAGIC)
_TRAILER = 5
_UNCOMPRESSED, _SNAPPY = 0, 1
_RESTART_INTERVAL = 16  # one key of so many is complete
_MAX_BLOCK = 1 << 18  # bytes after which a block of data ends


def is_table(read: Read, size: int) -> bool:
    """Return True if a file ends as a table does; `read(offset, size)` returns bytes."""
    return size >= FOOTER and read(size - FOOTER, FOOTER).endswith(_MAGIC)


def iterate_entries(read: Read, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, content) of a table in order; each block is verified before it is used.

    `read(offset, size)` returns bytes of the file, and `size` is the number of its bytes. Raise
    CorruptFileError if the table is damaged or compressed.
    """
    if not is_table(read, size):
        raise CorruptFileError(
            "the file does not end as a table does; it is damaged or something else"
        )
    body_size = size - FOOTER
    footer = read(body_size, FOOTER)
    with locate_flaws("end of the file"):
        *remarks, position = _read_handle(footer, 0, _HANDLES)
        *listing, _ = _read_handle(footer, position, _HANDLES)
    with locate_flaws("block of remarks"):
        list(_block_entries(_read_block(read, body_size, *remarks)))
    with locate_flaws("block that lists blocks"):
        locations = list(_block_places(_read_block(read, body_size, *listing)))
    previous: bytes | None = None
    for limit, offset, length in locations:
        with locate_flaws(f"block at {offset}"):
            for key, content in _block_entries(_read_block(read, body_size, offset, length)):
                if previous is not None and key <= previous:
                    raise CorruptFileError(
                        f"key {quote_name(key)} comes after {quote_name(previous)}"
                    )
                previous = key
                yield key, content
            if previous is not None and previous > limit:
                raise CorruptFileError(f"its keys go beyond {quote_name(limit)}")
        previous = limit


def _block_places(listing: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield (upper bound of keys, offset, length) of each data block; `listing` is the index."""
    end = 0
    for limit, handle in _block_entries(listing):
        offset, length, position = _read_handle(handle, 0, len(handle))
        if position < len(handle):
            raise CorruptFileError(f"there is more than a place for {quote_name(limit)}")
        if offset < end:
            raise CorruptFileError(f"the block at {offset} begins within another")
        end = offset + length + _TRAILER
        yield limit, offset, length


def _read_handle(handles: bytes, position: int, end: int) -> tuple[int, int, int]:
    """Return (offset, length, position after the handle) of a block handle."""
    offset, position = read_varint(handles, position, end)
    length, position = read_varint(handles, position, end)
    return offset, length, position


def _read_block(read: Read, body_size: int, offset: int, length: int) -> bytes:
    """Return a block without its trailer; raise CorruptFileError if it is damaged or compressed."""
    if offset + length + _TRAILER > body_size:
        raise CorruptFileError(
            f"it goes from {offset} to {offset + length + _TRAILER}, the file to {body_size}"
        )
    block = memoryview(read(offset, length + _TRAILER))
    check_checksum(int.from_bytes(block[length + 1 :], "little"), crc32c(block[: length + 1]))
    if block[length] == _SNAPPY:
        raise CorruptFileError(
            "it is compressed with snappy, which TensorFlow does not do to checkpoints and which is"
            " not read; restore and save it with the program that wrote it, without compression",
            UnsupportedCheckpointError,
        )
    if block[length] != _UNCOMPRESSED:
        raise CorruptFileError(f"it is compressed in an unknown way, {block[length]}")
    return bytes(block[:length])


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, content) of a block.

    Raise CorruptFileError if the keys together have more than 16 times the bytes of the block, so
    that shared prefixes cannot expand a small file to large memory.
    """
    end, restarts = _restart_points(block)
    position, key, budget = 0, b"", _RESTART_INTERVAL * len(block)
    while position < end:
        begin = position
        shared, position = read_varint(block, position, end)
        unshared, position = read_varint(block, position, end)
        length, position = read_varint(block, position, end)
        if restarts and restarts[-1] == begin:
            restarts.pop()
            if shared:
                raise CorruptFileError(f"the key at {begin} is not whole")
        if shared > len(key):
            raise CorruptFileError(
                f"the key at {begin} shares more bytes than the one before it has"
            )
        if unshared + length > end - position:
            raise CorruptFileError(f"the key and value at {begin} are cut off")
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        budget -= len(key)
        if budget < 0:
            raise CorruptFileError(f"its keys have more than {_RESTART_INTERVAL} times its bytes")
        yield key, block[position : position + length]
        position += length
    # An empty block, too, lists one offset, 0.
    if restarts and (end or restarts != [0]):
        raise CorruptFileError(f"no key begins at {restarts[-1]}")


def _restart_points(block: bytes) -> tuple[int, list[int]]:
    """Return (end of the keys of a block, offsets of complete keys, the last first)."""
    if len(block) < 4:
        raise CorruptFileError("it is too short")
    count = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (count + 1)
    if not count or end < 0:
        raise CorruptFileError(f"{count} whole keys are listed in {len(block)} bytes")
    return end, list(struct.unpack(f"<{count}I", block[end:-4]))[::-1]


def encoded_table(key_values: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a table, byte for byte as TensorFlow writes it.

    `key_values` has (key, content) pairs in ascending order of keys.
    """
    file, listing, block, last_key = bytearray(), _Block(1), _Block(_RESTART_INTERVAL), b""
    # Last key and handle of a written block that is not listed yet.
    finished: tuple[bytes, bytes] | None = None
    for key, content in key_values:
        if finished is not None:
            listing.add(_separator_between(finished[0], key), finished[1])
            finished = None
        block.add(key, content)
        last_key = key
        if block.size >= _MAX_BLOCK:
            finished, block = (last_key, _append_block(file, block)), _Block(_RESTART_INTERVAL)
    if block.size > _Block(_RESTART_INTERVAL).size:
        finished = last_key, _append_block(file, block)
    remarks = _append_block(file, _Block(_RESTART_INTERVAL))
    if finished is not None:
        listing.add(_successor_of(finished[0]), finished[1])
    handles = remarks + _append_block(file, listing)
    return bytes(file) + handles.ljust(_HANDLES, b"\0") + _MAGIC


class _Block:
    """Block of a table under construction.

    Args:
        interval: One key in `interval` keys is stored completely; all other keys omit the prefix
            shared with the previous key.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._content = bytearray()
        self._restarts = [0]
        self._count = 0  # keys since the last complete one
        self._last_key = b""

    @property
    def size(self) -> int:
        """Number of bytes of the block."""
        return len(self._content) + 4 * len(self._restarts) + 4

    def add(self, key: bytes, content: bytes) -> None:
        """Append a key with its content; the key must be greater than all previous keys."""
        shared = 0
        if self._count < self._interval:
            shared = _common_prefix_length(self._last_key, key)
        else:
            self._restarts.append(len(self._content))
            self._count = 0
        self._content += (
            encode_varint(shared) + encode_varint(len(key) - shared) + encode_varint(len(content))
        )
        self._content += key[shared:] + content
        self._count += 1
        self._last_key = key

    def finish_block(self) -> bytes:
        """Return the block with its trailer."""
        ends = struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))
        content = bytes(self._content) + ends + bytes([_UNCOMPRESSED])
        return content + mask_checksum(crc32c(content)).to_bytes(4, "little")


def _append_block(output: bytearray, block: _Block) -> bytes:
    """Append the bytes of a block to `output`; return their encoded offset and length."""
    handle = encode_varint(len(output)) + encode_varint(block.size)
    output += block.finish_block()
    return handle


def _common_prefix_length(key: bytes, next_key: bytes) -> int:
    """Return the length of the common prefix of two keys."""
    pairs = enumerate(zip(key, next_key))
    return next((i for i, (a, b) in pairs if a != b), min(len(key), len(next_key)))


def _separator_between(key: bytes, next_key: bytes) -> bytes:
    """Return a short key that is at least `key` and less than `next_key`."""
    position = _common_prefix_length(key, next_key)
    if position == min(len(key), len(next_key)) or key[position] == 0xFF:
        return key
    byte = key[position] + 1
    return key[:position] + bytes([byte]) if byte < next_key[position] else key


def _successor_of(key: bytes) -> bytes:
    """Return a short key that is not less than `key`."""
    for position, byte in enumerate(key):
        if byte != 0xFF:
            return key[:position] + bytes([byte + 1])
    return key

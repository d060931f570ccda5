"""Sorted tables, as LevelDB defines them and TensorFlow keeps indices in: keys with values.

https://github.com/google/leveldb/blob/main/doc/table_format.md. A table is a row of blocks:
those of data, one of remarks, which is empty here, and one that lists the blocks of data. Behind
each is a byte that tells its compression, and four with the CRC32C of all before. The last 48 bytes
say where the last two blocks are.

In a block a key begins with as much of the key before it as they share. Every few keys one is kept
whole; where these are is listed at the end of the block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

from thalweg._formats.bundle.errors import CorruptFileError, checksum_flaw, locate_flaws, quote_name
from thalweg._formats.bundle.proto import encode_varint, read_varint
from thalweg._formats.checksum import crc32c, mask_checksum, unmask_checksum
from thalweg.errors import UnsupportedCheckpointError

Read = Callable[[int, int], bytes]  # as many bytes as asked for, from a position on

FOOTER = 48
_MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
_HANDLES = FOOTER - len(_MAGIC)
_TRAILER = 5
_PLAIN, _SNAPPY = 0, 1
_WHOLE = 16  # one key of so many is whole
_BLOCK = 1 << 18  # bytes after which a block of data ends


def is_table(read: Read, size: int) -> bool:
    """Return True if a file's end is that of a table; arguments as for `iterate_entries`."""
    return size >= FOOTER and read(size - FOOTER, FOOTER).endswith(_MAGIC)


def iterate_entries(read: Read, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys of a table with their values, in order, each from a block that is undamaged.

    Args:
        read: Reads the file.
        size: Its size in bytes.

    Raises:
        CorruptFileError: The table is damaged or compressed.
    """
    if not is_table(read, size):
        raise CorruptFileError(
            "the file does not end as a table does; it is damaged or something else"
        )
    body = size - FOOTER
    footer = read(body, FOOTER)
    with locate_flaws("end of the file"):
        *remarks, at = _read_handle(footer, 0, _HANDLES)
        *listing, _ = _read_handle(footer, at, _HANDLES)
    with locate_flaws("block of remarks"):
        list(_block_entries(_read_block(read, body, *remarks)))
    with locate_flaws("block that lists blocks"):
        places = list(_block_places(_read_block(read, body, *listing)))
    before: bytes | None = None
    for limit, offset, length in places:
        with locate_flaws(f"block at {offset}"):
            for key, value in _block_entries(_read_block(read, body, offset, length)):
                if before is not None and key <= before:
                    raise CorruptFileError(
                        f"key {quote_name(key)} comes after {quote_name(before)}"
                    )
                before = key
                yield key, value
            if before is not None and before > limit:
                raise CorruptFileError(f"its keys go beyond {quote_name(limit)}")
        before = limit


def _block_places(listing: bytes) -> Iterator[tuple[bytes, int, int]]:
    """For each block of data: a key that none in it is behind, position, length."""
    reached = 0
    for limit, value in _block_entries(listing):
        offset, length, at = _read_handle(value, 0, len(value))
        if at < len(value):
            raise CorruptFileError(f"there is more than a place for {quote_name(limit)}")
        if offset < reached:
            raise CorruptFileError(f"the block at {offset} begins within another")
        reached = offset + length + _TRAILER
        yield limit, offset, length


def _read_handle(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    offset, at = read_varint(data, at, end)
    length, at = read_varint(data, at, end)
    return offset, length, at


def _read_block(read: Read, body: int, offset: int, length: int) -> bytes:
    """A block without its trailer, if it is undamaged."""
    if offset + length + _TRAILER > body:
        raise CorruptFileError(
            f"it goes from {offset} to {offset + length + _TRAILER}, the file to {body}"
        )
    data = memoryview(read(offset, length + _TRAILER))
    stored = unmask_checksum(int.from_bytes(data[length + 1 :], "little"))
    calculated = crc32c(data[: length + 1])
    if stored != calculated:
        raise checksum_flaw(stored, calculated)
    if data[length] == _SNAPPY:
        raise CorruptFileError(
            "it is compressed with snappy, which TensorFlow does not do to checkpoints and which is"
            " not read; restore and save it with the program that wrote it, without compression",
            UnsupportedCheckpointError,
        )
    if data[length] != _PLAIN:
        raise CorruptFileError(f"it is compressed in an unknown way, {data[length]}")
    return bytes(data[:length])


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys of a block with their values.

    All keys together have at most 16 times the bytes of the block, which holds for every block in
    which one key of 16 is whole: nobody makes much of little by sharing.
    """
    end, whole = _restart_points(block)
    at, key, room = 0, b"", _WHOLE * len(block)
    while at < end:
        begin = at
        shared, at = read_varint(block, at, end)
        own, at = read_varint(block, at, end)
        length, at = read_varint(block, at, end)
        if whole and whole[-1] == begin:
            whole.pop()
            if shared:
                raise CorruptFileError(f"the key at {begin} is not whole")
        if shared > len(key):
            raise CorruptFileError(
                f"the key at {begin} shares more bytes than the one before it has"
            )
        if own + length > end - at:
            raise CorruptFileError(f"the key and value at {begin} are cut off")
        key = key[:shared] + block[at : at + own]
        at += own
        room -= len(key)
        if room < 0:
            raise CorruptFileError(f"its keys have more than {_WHOLE} times its bytes")
        yield key, block[at : at + length]
        at += length
    if whole and (end or whole != [0]):
        raise CorruptFileError(f"no key begins at {whole[-1]}")


def _restart_points(block: bytes) -> tuple[int, list[int]]:
    """Where the keys of a block end, and the positions of whole keys, the last first."""
    if len(block) < 4:
        raise CorruptFileError("it is too short")
    count = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (count + 1)
    if not count or end < 0:
        raise CorruptFileError(f"{count} whole keys are listed in {len(block)} bytes")
    return end, list(struct.unpack(f"<{count}I", block[end:-4]))[::-1]


def encoded_table(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a table of keys with values, as TensorFlow writes it to the byte.

    Args:
        items: Keys and values; each key is greater than the one before it.
    """
    file, listing, block, last = bytearray(), _Block(1), _Block(_WHOLE), b""
    ended: tuple[bytes, bytes] | None = None  # the last key of a block that is written, its place
    for key, value in items:
        if ended is not None:
            listing.add(_separator_between(ended[0], key), ended[1])
            ended = None
        block.add(key, value)
        last = key
        if block.size >= _BLOCK:
            ended, block = (last, _append_block(file, block)), _Block(_WHOLE)
    if block.size > _Block(_WHOLE).size:
        ended = last, _append_block(file, block)
    remarks = _append_block(file, _Block(_WHOLE))
    if ended is not None:
        listing.add(_successor_of(ended[0]), ended[1])
    handles = remarks + _append_block(file, listing)
    return bytes(file) + handles.ljust(_HANDLES, b"\0") + _MAGIC


class _Block:
    """A block that grows.

    Args:
        interval: One key of so many is whole.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._data = bytearray()
        self._whole = [0]
        self._count = 0  # keys since the last whole one
        self._last = b""

    @property
    def size(self) -> int:
        """Number of bytes of the block."""
        return len(self._data) + 4 * len(self._whole) + 4

    def add(self, key: bytes, value: bytes) -> None:
        """Append a key, greater than all before it."""
        shared = 0
        if self._count < self._interval:
            shared = _common_prefix_length(self._last, key)
        else:
            self._whole.append(len(self._data))
            self._count = 0
        self._data += (
            encode_varint(shared) + encode_varint(len(key) - shared) + encode_varint(len(value))
        )
        self._data += key[shared:] + value
        self._count += 1
        self._last = key

    def finish_block(self) -> bytes:
        """Return the block with its trailer."""
        ends = struct.pack(f"<{len(self._whole) + 1}I", *self._whole, len(self._whole))
        data = bytes(self._data) + ends + bytes([_PLAIN])
        return data + mask_checksum(crc32c(data)).to_bytes(4, "little")


def _append_block(file: bytearray, block: _Block) -> bytes:
    """Append a block to a file, and say where it is."""
    place = encode_varint(len(file)) + encode_varint(block.size)
    file += block.finish_block()
    return place


def _common_prefix_length(one: bytes, other: bytes) -> int:
    """How many bytes two keys begin with alike."""
    pairs = enumerate(zip(one, other))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _separator_between(one: bytes, other: bytes) -> bytes:
    """A short key that is not less than one and less than the other."""
    at = _common_prefix_length(one, other)
    if at < min(len(one), len(other)) and one[at] < 0xFF and one[at] + 1 < other[at]:
        return one[:at] + bytes([one[at] + 1])
    return one


def _successor_of(key: bytes) -> bytes:
    """A short key that is not less than one."""
    for at, byte in enumerate(key):
        if byte != 0xFF:
            return key[:at] + bytes([byte + 1])
    return key

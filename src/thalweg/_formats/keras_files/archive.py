"""Members of a `.keras` file, which is a zip archive.

Keras writes simple archives. Every size and every name is checked before anything is read, nothing
is written to disk, and only requested members are opened.

`zipfile` is not used: it makes a list of all members before their number can be checked.

Reference: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from thalweg._formats.source import FilePart, SourceFile

MAGIC = b"PK\3\4"
ENTRIES, RATIO = 65_536, 100
_PIECE = 1 << 20
_UNCOMPRESSED, _DEFLATED = 0, 8
_ENCRYPTED = 1 | 64
_END, _LOCATOR, _DIRECTORY_END = b"PK\5\6", b"PK\6\7", b"PK\6\6"
_LONG, _SHORT = 2**32 - 1, 2**16 - 1  # marks of numbers that are in records of 64 bits


@dataclass(frozen=True)
class ArchiveMember:
    """A member of an archive.

    Attributes:
        name: The name.
        method: The compression: 0, none, or 8, deflate.
        checksum: The CRC32 of the member's bytes.
        stored_size, size: The number of bytes in the archive, and after decompression.
        begin: The offset of the member's local header.
    """

    name: str
    method: int
    checksum: int
    stored_size: int
    size: int
    begin: int


def list_members(source: SourceFile) -> dict[str, ArchiveMember]:
    """Return {name: member} of an archive.

    Raises:
        DataLossError: The file is not an archive, is damaged, or would expand over a hundredfold.
        UnsafeCheckpointError: A name leads out of the directory of the archive.
        UnsupportedCheckpointError: A member is encrypted, or its compression is not supported.
    """
    count, size, begin = _find_directory(source)
    if count > ENTRIES:
        raise source.data_loss_error(
            begin, f"{count} members, and {ENTRIES} are the most there can be"
        )
    listing = source.read_part(begin, size, "the list of members")
    members: dict[str, ArchiveMember] = {}
    for _ in range(count):
        offset, member = listing.offset, _read_member(listing)
        if member.name in members:
            raise source.data_loss_error(offset, f"the member {member.name!r} is there twice")
        if member.size > RATIO * member.stored_size:
            text = f"{member.name!r} has {member.stored_size} bytes that become {member.size}"
            raise source.data_loss_error(offset, f"{text}, more than {RATIO} times as many")
        members[member.name] = member
    if listing.left:
        raise source.data_loss_error(listing.offset, "there are more members than the archive says")
    if sum(member.stored_size for member in members.values()) > begin:
        raise source.data_loss_error(begin, "members overlap")
    return members


def _find_directory(source: SourceFile) -> tuple[int, int, int]:
    """Return (number of members, size of the member list, offset of the member list)."""
    begin = max(source.size - 22, 0)
    end = source.read_part(begin, min(source.size, 22), "the end of the archive")
    if bytes(end.data[:4]) != _END:
        raise source.data_loss_error(
            begin, "the archive is cut off: the list of its members is not there"
        )
    end.take(4)
    *disks, count, size, begin, comment = end.take_numbers(2, 2, 2, 2, 4, 4, 2)
    if disks != [0, 0, count] or comment:
        raise source.data_loss_error(source.size - 22, "the end of the archive is not Keras'")
    if count != _SHORT and _LONG not in (size, begin):
        return count, size, begin
    locator = source.read_part(max(source.size - 42, 0), 20, "the end of a large archive")
    locator.expect_signature(_LOCATOR, "the end of a large archive")
    locator.take(4)
    record = source.read_part(locator.take_number(8), 56, "the end of a large archive")
    record.expect_signature(_DIRECTORY_END, "the end of a large archive")
    record.take(28)
    count, size, begin = record.take_numbers(8, 8, 8)
    return count, size, begin


def _read_member(listing: FilePart) -> ArchiveMember:
    """Return the next member of the member list."""
    source, offset = listing.source, listing.offset
    listing.expect_signature(b"PK\1\2", "a member")
    _, flags, method, _, checksum, *sizes = listing.take_numbers(4, 2, 2, 4, 4, 4, 4)
    *lengths, _, begin = listing.take_numbers(2, 2, 2, 8, 4)
    name, extra, _ = (listing.take_part(length) for length in lengths)
    stored_size, size, begin = _read_zip64(extra, sizes, begin)
    member_name = _member_name(source, offset, bytes(name.data))
    if flags & _ENCRYPTED:
        raise source.unsupported_error(offset, f"the member {member_name!r} is encrypted")
    if method not in (_UNCOMPRESSED, _DEFLATED):
        text = f"the member {member_name!r} is compressed by method {method}"
        raise source.unsupported_error(offset, text)
    if method == _UNCOMPRESSED and stored_size != size:
        text = f"{member_name!r} has {stored_size} bytes and should have {size}"
        raise source.data_loss_error(offset, text)
    return ArchiveMember(member_name, method, checksum, stored_size, size, begin)


def _read_zip64(extra: FilePart, sizes: list[int], begin: int) -> tuple[int, int, int]:
    """Return (stored size, size, offset of the member), as 64-bit numbers.

    `sizes` has the two sizes, `begin` is the offset, each in 32 bits. A value of 2**32 - 1 is
    replaced by a number from the extra fields `extra`.
    """
    while extra.left >= 4:
        kind, record = extra.take_number(2), extra.take_part(extra.take_number(2))
        if kind != 1:
            continue
        # The uncompressed size comes first.
        for index in (1, 0):
            if sizes[index] == _LONG:
                sizes[index] = record.take_number(8)
        begin = record.take_number(8) if begin == _LONG else begin
    return sizes[0], sizes[1], begin


def _member_name(source: SourceFile, offset: int, name: bytes) -> str:
    """Return a name as text; raise UnsafeCheckpointError if it leads out of its directory."""
    try:
        decoded = name.decode()
    except UnicodeDecodeError as error:
        raise source.data_loss_error(offset, f"the name {name[:40]!r} is not UTF-8") from error
    segments = decoded.rstrip("/").split("/")
    if "\\" in decoded or ":" in decoded or "\0" in decoded or {"", ".", ".."} & set(segments):
        raise source.unsafe_error(offset, f"the member {decoded[:80]!r} would leave the folder")
    return decoded


def read_member(source: SourceFile, member: ArchiveMember) -> SourceFile:
    """Verify a member and return it as a `SourceFile`; raise DataLossError if it is damaged."""
    head = source.read_part(member.begin, 30, f"the member {member.name!r}")
    head.expect_signature(MAGIC, f"the member {member.name!r}")
    head.take(22)
    lengths = head.take_numbers(2, 2)
    names = source.read_part(member.begin + 30, sum(lengths), f"the member {member.name!r}")
    if bytes(names.take(lengths[0])) != member.name.encode():
        raise source.data_loss_error(member.begin, f"{member.name!r} has another name here")
    begin = member.begin + 30 + sum(lengths)
    if begin + member.stored_size > source.size:
        raise source.data_loss_error(begin, f"{member.name!r} goes beyond the end of the file")
    inflated = _inflate_member(source, member, begin) if member.method == _DEFLATED else None

    def read(first: int, size: int) -> memoryview:
        """Return bytes of the member, from memory or from the archive."""
        if inflated is not None:
            return inflated[first : first + size]
        return source.read_uncounted(begin + first, size)

    checksum = 0
    for first in range(0, member.size, _PIECE):
        checksum = zlib.crc32(read(first, min(_PIECE, member.size - first)), checksum)
    if checksum != member.checksum:
        text = f"stored {member.checksum} vs. calculated on the restored bytes {checksum}"
        raise source.data_loss_error(begin, f"{member.name!r}: Checksum does not match: {text}")
    return SourceFile(f"{source.title}: {member.name}", member.size, read)


def _inflate_member(source: SourceFile, member: ArchiveMember, begin: int) -> memoryview:
    """Return the decompressed bytes of a member, which begins at `begin`; raise if damaged."""
    # A negative size of the window: members have no header or checksum of zlib.
    stream, inflated = zlib.decompressobj(-zlib.MAX_WBITS), bytearray()
    try:
        for first in range(0, member.stored_size, _PIECE):
            # A limit of 0 bytes would mean no limit.
            if len(inflated) > member.size:
                break
            piece = source.read_uncounted(begin + first, min(_PIECE, member.stored_size - first))
            inflated += stream.decompress(piece, member.size + 1 - len(inflated))
    except zlib.error as error:
        raise source.data_loss_error(
            begin, f"{member.name!r} cannot be inflated: {error}"
        ) from error
    if len(inflated) != member.size or not stream.eof:
        raise source.data_loss_error(begin, f"{member.name!r} has not the size that it should have")
    return memoryview(inflated)

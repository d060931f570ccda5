"""The members of a `.keras` file, which is a zip archive.

What Keras writes is the plainest kind of one. Every size and every name is looked at before
anything is read, nothing is written anywhere, and members that are not asked for stay closed.

By hand, as `zipfile` makes a list of all members before it can be asked how many there are.

Reference: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from thalweg.storage.source import Part, Source

MAGIC = b"PK\3\4"
ENTRIES, RATIO = 65_536, 100
_PIECE = 1 << 20
_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 1 | 64
_END, _LOCATOR, _DIRECTORY_END = b"PK\5\6", b"PK\6\7", b"PK\6\6"
_LONG, _SHORT = 2**32 - 1, 2**16 - 1  # numbers that stand elsewhere, in records of 64 bits


@dataclass(frozen=True)
class Member:
    """A member of an archive, not read yet.

    Attributes:
        name: Its name.
        method: How it is stored: 0, as it is, or 8, deflated.
        checksum: The CRC32 of its bytes.
        stored, size: How many bytes it takes, and has.
        begin: Where its own header is.
    """

    name: str
    method: int
    checksum: int
    stored: int
    size: int
    begin: int


def members(source: Source) -> dict[str, Member]:
    """The members of an archive by name.

    Raises:
        DataLossError: It is no archive, or is damaged, or would become a hundred times as large.
        UnsafeCheckpointError: A name leads out of the folder in which it would be unpacked.
        UnsupportedCheckpointError: A member is encrypted, or compressed by another method.
    """
    count, size, begin = _directory(source)
    if count > ENTRIES:
        raise source.damaged(begin, f"{count} members, and {ENTRIES} are the most there can be")
    part = source.part(begin, size, "the list of members")
    found: dict[str, Member] = {}
    for _ in range(count):
        at, member = part.offset, _member(part)
        if member.name in found:
            raise source.damaged(at, f"the member {member.name!r} is there twice")
        if member.size > RATIO * member.stored:
            text = f"{member.name!r} has {member.stored} bytes that become {member.size}"
            raise source.damaged(at, f"{text}, more than {RATIO} times as many")
        found[member.name] = member
    if part.left:
        raise source.damaged(part.offset, "there are more members than the archive says")
    if sum(member.stored for member in found.values()) > begin:
        raise source.damaged(begin, "members overlap")
    return found


def _directory(source: Source) -> tuple[int, int, int]:
    """How many members there are, and size and place of their list."""
    begin = max(source.size - 22, 0)
    end = source.part(begin, min(source.size, 22), "the end of the archive")
    if bytes(end.data[:4]) != _END:
        raise source.damaged(begin, "the archive is cut off: the list of its members is not there")
    end.take(4)
    disks = end.number(2), end.number(2), end.number(2)
    count, size, begin, comment = end.number(2), end.number(4), end.number(4), end.number(2)
    if disks != (0, 0, count) or comment:
        raise source.damaged(source.size - 22, "the end of the archive is not Keras'")
    if count != _SHORT and _LONG not in (size, begin):
        return count, size, begin
    locator = source.part(max(source.size - 42, 0), 20, "the end of a large archive")
    locator.expect(_LOCATOR, "the end of a large archive")
    locator.take(4)
    record = source.part(locator.number(8), 56, "the end of a large archive")
    record.expect(_DIRECTORY_END, "the end of a large archive")
    record.take(28)
    return record.number(8), record.number(8), record.number(8)


def _member(part: Part) -> Member:
    source, at = part.source, part.offset
    part.expect(b"PK\1\2", "a member")
    part.take(4)
    flags, method, _, checksum = part.number(2), part.number(2), part.number(4), part.number(4)
    sizes = [part.number(4), part.number(4)]
    lengths = [part.number(2) for _ in range(3)]
    part.take(8)
    begin = part.number(4)
    name, extra, _ = (part.cut(length) for length in lengths)
    stored, size, begin = _wide(extra, sizes, begin)
    title = _title(source, at, bytes(name.data))
    if flags & _ENCRYPTED:
        raise source.unsupported(at, f"the member {title!r} is encrypted")
    if method not in (_STORED, _DEFLATED):
        raise source.unsupported(at, f"the member {title!r} is compressed by method {method}")
    if method == _STORED and stored != size:
        raise source.damaged(at, f"{title!r} has {stored} bytes and should have {size}")
    return Member(title, method, checksum, stored, size, begin)


def _wide(extra: Part, sizes: list[int], begin: int) -> tuple[int, int, int]:
    """Sizes and place, out of a record of 64 bits if they are too large for their own fields."""
    while extra.left >= 4:
        kind, record = extra.number(2), extra.cut(extra.number(2))
        if kind != 1:
            continue
        for place in (1, 0):  # the size comes before what is stored
            if sizes[place] == _LONG:
                sizes[place] = record.number(8)
        begin = record.number(8) if begin == _LONG else begin
    return sizes[0], sizes[1], begin


def _title(source: Source, at: int, name: bytes) -> str:
    try:
        found = name.decode()
    except UnicodeDecodeError as error:
        raise source.damaged(at, f"the name {name[:40]!r} is not UTF-8") from error
    parts = found.rstrip("/").split("/")
    if "\\" in found or ":" in found or "\0" in found or {"", ".", ".."} & set(parts):
        raise source.unsafe(at, f"the member {found[:80]!r} would leave the folder")
    return found


def content(source: Source, member: Member) -> Source:
    """The bytes of a member, after their checksum.

    Raises:
        DataLossError: They are not what was written.
    """
    head = source.part(member.begin, 30, f"the member {member.name!r}")
    head.expect(MAGIC, f"the member {member.name!r}")
    head.take(22)
    lengths = head.number(2), head.number(2)
    names = source.part(member.begin + 30, sum(lengths), f"the member {member.name!r}")
    if bytes(names.take(lengths[0])) != member.name.encode():
        raise source.damaged(member.begin, f"{member.name!r} has another name here")
    begin = member.begin + 30 + sum(lengths)
    if begin + member.stored > source.size:
        raise source.damaged(begin, f"{member.name!r} goes beyond the end of the file")
    if member.method == _STORED:
        return _as_it_is(source, member, begin)
    return _inflated(source, member, begin)


def _as_it_is(source: Source, member: Member, begin: int) -> Source:
    checksum = 0
    for first in range(0, member.size, _PIECE):
        size = min(_PIECE, member.size - first)
        checksum = zlib.crc32(source.raw(begin + first, size), checksum)
    _check(source, member, begin, checksum)
    return Source(
        f"{source.title}: {member.name}",
        member.size,
        lambda first, size: source.raw(begin + first, size),
    )


def _inflated(source: Source, member: Member, begin: int) -> Source:
    stream, made = zlib.decompressobj(-zlib.MAX_WBITS), bytearray()
    try:
        for first in range(0, member.stored, _PIECE):
            if len(made) > member.size:
                break
            piece = source.raw(begin + first, min(_PIECE, member.stored - first))
            made += stream.decompress(piece, member.size + 1 - len(made))
    except zlib.error as error:
        raise source.damaged(begin, f"{member.name!r} cannot be inflated: {error}") from error
    if len(made) != member.size or not stream.eof:
        raise source.damaged(begin, f"{member.name!r} has not the size that it should have")
    _check(source, member, begin, zlib.crc32(made))
    view = memoryview(made)
    return Source(
        f"{source.title}: {member.name}",
        member.size,
        lambda first, size: view[first : first + size],
    )


def _check(source: Source, member: Member, begin: int, calculated: int) -> None:
    if calculated != member.checksum:
        text = f"stored {member.checksum} vs. calculated on the restored bytes {calculated}"
        raise source.damaged(begin, f"{member.name!r}: Checksum does not match: {text}")

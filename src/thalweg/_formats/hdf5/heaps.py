"""Heaps: where names of an old group, and texts of any length, lie."""

from __future__ import annotations

from thalweg._formats.source import FilePart, SourceFile

_LONGEST = 1024  # bytes of a name; HDF5 has no limit, Keras' names have dozens


class LocalHeap:
    """The names of a group.

    Args:
        source: The file.
        address: Where the heap is.
    """

    def __init__(self, source: SourceFile, address: int) -> None:
        source.visit_once(address, "a heap of names")
        head = source.read_part(address, 32, "a heap of names")
        head.expect_signature(b"HEAP\0\0\0\0", "a heap of names")
        size = head.take_number(8)
        head.take_number(8)
        self._names = source.read_part(
            head.take_stored_address("a heap of names"), size, "a heap of names"
        )

    def name_at(self, offset: int) -> str:
        """Return the name at an offset."""
        part = self._names
        end = bytes(part.data[offset : offset + _LONGEST + 1]).find(b"\0")
        part.source.charge_read(max(end, 0) + 1, part.offset)
        if end <= 0:
            raise part.source.data_loss_error(
                part.offset + offset, "a name does not end, or has no letters"
            )
        return decode_name(
            part.source, part.offset + offset, bytes(part.data[offset : offset + end])
        )


class GlobalHeap:
    """Texts of any length, by the address of a collection and a number in it.

    Args:
        source: The file.
    """

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._collections: dict[int, dict[int, FilePart]] = {}

    def text_at(self, where: FilePart) -> bytes:
        """Return a text that is taken once.

        Args:
            where: Its length, address and number, sixteen bytes.
        """
        length, begin = where.take_number(4), where.offset
        address, number = where.take_address(), where.take_number(4)
        if not length:
            return b""
        if address is None:
            raise self._source.data_loss_error(begin, "a text is not stored")
        if address not in self._collections:
            self._collections[address] = self._read_collection(address)
        found = self._collections[address].pop(number, None)
        if found is None:
            raise self._source.data_loss_error(
                begin, f"text {number} is not there, or is used twice"
            )
        return bytes(found.take(length))

    def _read_collection(self, address: int) -> dict[int, FilePart]:
        source = self._source
        head = source.read_part(address, 16, "a heap of texts")
        head.expect_signature(b"GCOL\1\0\0\0", "a heap of texts")
        part = source.read_part(address, head.take_number(8), "a heap of texts")
        part.take(16)
        found: dict[int, FilePart] = {}
        while part.left >= 16:
            number = part.take_number(2)
            part.take(6)
            size = part.take_number(8)
            if not number:  # what is left is free
                break
            found[number] = part.take_part(size)
            part.take(min(-size % 8, part.left))
        return found


def decode_name(source: SourceFile, offset: int, name: bytes) -> str:
    """Return a name of a file; raises `DataLossError` if it is none."""
    try:
        found = name.decode()
    except UnicodeDecodeError as error:
        raise source.data_loss_error(offset, f"the name {name!r} is not UTF-8") from error
    if not found or len(name) > _LONGEST or "\0" in found:
        raise source.data_loss_error(
            offset, f"the name {found[:40]!r} is empty, or too long, or has a NUL"
        )
    return found

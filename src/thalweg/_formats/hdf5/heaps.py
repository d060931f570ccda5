"""Heaps of an HDF5 file: storage of names and of variable-length texts."""

from __future__ import annotations

from thalweg._formats.source import FilePart, SourceFile

_MAX_LENGTH = 1024  # bytes of a name; HDF5 has no limit


def read_local_heap(source: SourceFile, address: int) -> FilePart:
    """Return the bytes of the heap that contains the names of a group's members."""
    head = source.read_structure(address, 32, b"HEAP\0\0\0\0", "a heap of names")
    size, _ = head.take_numbers(8, 8)
    begin = head.take_stored_address("a heap of names")
    return source.read_part(begin, size, "a heap of names")


def name_at(heap: FilePart, offset: int) -> str:
    """Return the name at an offset; raise DataLossError if it is empty or does not end."""
    source, begin = heap.source, heap.offset + offset
    end = bytes(heap.data[offset : offset + _MAX_LENGTH + 1]).find(b"\0")
    # A malicious table may refer to the same name many times.
    source.charge_read(max(end, 0) + 1, heap.offset)
    if end <= 0:
        raise source.data_loss_error(begin, "a name does not end, or has no letters")
    return decode_name(source, begin, bytes(heap.data[offset : offset + end]))


class GlobalHeap:
    """Storage of variable-length texts, which are numbered in collections.

    Args:
        source: The file.
    """

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._collections: dict[int, dict[int, FilePart]] = {}

    def text_at(self, reference: FilePart) -> bytes:
        """Return a text; raise DataLossError if it is missing or was returned before.

        Args:
            reference: Sixteen bytes: the text's length, its collection's address, its number.
        """
        length, begin = reference.take_number(4), reference.offset
        address, index = reference.take_address(), reference.take_number(4)
        if not length:
            return b""
        if address is None:
            raise self._source.data_loss_error(begin, "a text is not stored")
        if address not in self._collections:
            self._collections[address] = self._read_collection(address)
        text = self._collections[address].pop(index, None)
        if text is None:
            raise self._source.data_loss_error(
                begin, f"text {index} is not there, or is used twice"
            )
        return bytes(text.take(length))

    def _read_collection(self, address: int) -> dict[int, FilePart]:
        """Return {number: text} of the collection at an address."""
        source = self._source
        head = source.read_part(address, 16, "a heap of texts")
        head.expect_signature(b"GCOL\1\0\0\0", "a heap of texts")
        piece = source.read_part(address, head.take_number(8), "a heap of texts")
        piece.take(16)
        texts: dict[int, FilePart] = {}
        while piece.left >= 16:
            index, _, size = piece.take_numbers(2, 6, 8)
            # Number 0 marks the free space at the end.
            if not index:
                break
            texts[index] = piece.take_part(size)
            piece.take(min(-size % 8, piece.left))
        return texts


def decode_name(source: SourceFile, offset: int, name: bytes) -> str:
    """Return a name as text; raise `DataLossError` if it is invalid."""
    try:
        decoded = name.decode()
    except UnicodeDecodeError as error:
        raise source.data_loss_error(offset, f"the name {name!r} is not UTF-8") from error
    if not decoded or len(name) > _MAX_LENGTH or "\0" in decoded:
        raise source.data_loss_error(
            offset, f"the name {decoded[:40]!r} is empty, or too long, or has a NUL"
        )
    return decoded

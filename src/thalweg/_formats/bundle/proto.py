"""Wire format of protocol buffers: https://protobuf.dev/programming-guides/encoding.

A message is a sequence of fields. Each begins with a number for the field and its kind; numbers
have seven bits per byte, the lowest first. Groups, which proto3 does not have, raise an error.

The protobuf package is not used: it would have to be installed wherever a checkpoint is read, and
tensorboard has only two of the messages of `messages.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from thalweg._formats.bundle.errors import CorruptFileError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # kinds of fields: a number, or how many bytes follow
_SIZES = {FIXED64: 8, FIXED32: 4}
_LAST_FIELD = (1 << 29) - 1
_WORD = 1 << 64


def read_varint(encoded: bytes | memoryview, offset: int, end: int) -> tuple[int, int]:
    """Return (number at `offset`, offset after the number).

    Raise CorruptFileError if the number goes beyond the offset `end`, or has more than 64 bits.
    """
    integer = shift = 0
    while offset < end:
        byte = encoded[offset]
        offset += 1
        integer |= (byte & 0x7F) << shift
        if byte < 0x80:
            if integer >= _WORD:
                break
            return integer, offset
        shift += 7
        if shift > 63:
            break
    else:
        raise CorruptFileError("a number is cut off")
    raise CorruptFileError("a number has more than 64 bits")


def packed_numbers(packed: bytes) -> Iterator[int]:
    """Yield the numbers of a packed field; raise CorruptFileError as `read_varint` does."""
    offset = 0
    while offset < len(packed):
        integer, offset = read_varint(packed, offset, len(packed))
        yield integer


def encode_varint(integer: int) -> bytes:
    """Return a number as bytes; a negative number has ten bytes."""
    integer %= _WORD
    encoded = bytearray()
    while integer > 0x7F:
        encoded.append(integer & 0x7F | 0x80)
        integer >>= 7
    encoded.append(integer)
    return bytes(encoded)


def iterate_fields(serialized: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (field number, kind, content) of each field of a message, in order.

    The content is an int for VARINT, FIXED32 and FIXED64, and bytes for BYTES. While iterating,
    raise CorruptFileError if a field is cut off, or its number or kind is unknown.
    """
    offset, end = 0, len(serialized)
    while offset < end:
        key, offset = read_varint(serialized, offset, end)
        field, kind = key >> 3, key & 7
        if not 0 < field <= _LAST_FIELD:
            raise CorruptFileError(f"there is no field {field}")
        if kind == VARINT:
            content, offset = read_varint(serialized, offset, end)
            yield field, kind, content
            continue
        if kind == BYTES:
            size, offset = read_varint(serialized, offset, end)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise CorruptFileError(f"field {field} is of an unknown kind, {kind}")
        if size > end - offset:
            raise CorruptFileError(f"field {field} is cut off")
        content = serialized[offset : offset + size]
        offset += size
        yield field, kind, content if kind == BYTES else int.from_bytes(content, "little")


class ProtoMessage:
    """Selected fields of a message; all other fields are skipped.

    Args:
        serialized: The message.
        kinds: {field number: kind} of the fields to read.

    Raises:
        CorruptFileError: The bytes are not a message, or a field's kind differs from `kinds`.
    """

    def __init__(self, serialized: bytes, kinds: Mapping[int, int]) -> None:
        self._values: dict[int, list[int | bytes]] = {}
        for field, kind, content in iterate_fields(serialized):
            if field not in kinds:
                continue
            if kind != kinds[field]:
                raise CorruptFileError(f"field {field} is of kind {kind}, not {kinds[field]}")
            self._values.setdefault(field, []).append(content)

    def has(self, field: int) -> bool:
        """Return True if the message has a field."""
        return field in self._values

    def number(self, field: int) -> int:
        """Return a field as an unsigned number, 0 if it is missing."""
        content = self._single_value(field)
        return content if isinstance(content, int) else 0

    def signed(self, field: int) -> int:
        """Return a field as an int32 or int64, 0 if it is missing."""
        integer = self.number(field)
        return integer - _WORD if integer >= _WORD >> 1 else integer

    def data(self, field: int) -> bytes:
        """Return a field as bytes, b"" if it is missing."""
        content = self._single_value(field)
        return content if isinstance(content, bytes) else b""

    def text(self, field: int) -> str:
        """Return a field as text, "" if it is missing."""
        return decode_text(self.data(field))

    def every(self, field: int) -> list[bytes]:
        """Return the bytes of a repeated field."""
        return [content for content in self._values.get(field, []) if isinstance(content, bytes)]

    def _single_value(self, field: int) -> int | bytes | None:
        """Return the value of a field, or None; raise CorruptFileError if it is repeated."""
        values = self._values.get(field)
        if values is None:
            return None
        if len(values) > 1:
            raise CorruptFileError(f"field {field} comes {len(values)} times")
        return values[0]


def decode_text(encoded: bytes) -> str:
    """Return bytes as text; raise CorruptFileError unless they are UTF-8."""
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        raise CorruptFileError(f"{encoded[:80]!r} is no UTF-8") from None


def number_field(field: int, integer: int) -> bytes:
    """Return a serialized number field; b"" if the number is 0."""
    return encode_varint(field << 3 | VARINT) + encode_varint(integer) if integer else b""


def fixed32_field(field: int, integer: int) -> bytes:
    """Return a serialized field of four bytes; b"" if the number is 0."""
    return encode_varint(field << 3 | FIXED32) + integer.to_bytes(4, "little") if integer else b""


def bytes_field(field: int, content: bytes) -> bytes:
    """Return a serialized field of bytes or a message, also if it is empty."""
    return encode_varint(field << 3 | BYTES) + encode_varint(len(content)) + content


def string_field(field: int, text: str) -> bytes:
    """Return a serialized text field; b"" for ""."""
    return bytes_field(field, text.encode()) if text else b""

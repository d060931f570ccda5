"""Protocol buffers on the wire: https://protobuf.dev/programming-guides/encoding.

A message is a row of fields. Each begins with a number, which tells the field and its kind; numbers
have seven bits a byte, the lowest first. Groups, which proto3 does not have, are refused.

By hand, as protobuf would have to be installed wherever a checkpoint is read, and tensorboard has
none of the messages of `messages.py` but those of shapes and versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from thalweg._formats.bundle.errors import CorruptFileError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # kinds of fields: a number, or how many bytes follow
_SIZES = {FIXED64: 8, FIXED32: 4}
_LAST_FIELD = (1 << 29) - 1
_WORD = 1 << 64


def read_varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Return a number and the position behind it.

    Args:
        data: Where it is.
        at: Where it begins.
        end: What lies from here on is not looked at.

    Raises:
        CorruptFileError: It goes beyond `end`, or has more than 64 bits.
    """
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= _WORD:
                break
            return value, at
        shift += 7
        if shift > 63:
            break
    else:
        raise CorruptFileError("a number is cut off")
    raise CorruptFileError("a number has more than 64 bits")


def packed_numbers(data: bytes) -> Iterator[int]:
    """Yield the numbers of a field that has many; errors as of `read_varint`."""
    at = 0
    while at < len(data):
        each, at = read_varint(data, at, len(data))
        yield each


def encode_varint(value: int) -> bytes:
    """Return a number as bytes; negative ones have all ten."""
    value %= _WORD
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def iterate_fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield each field of a message in order: its number, its kind and its value.

    The value is an int for VARINT, FIXED32 and FIXED64, and bytes for BYTES.

    Raises:
        CorruptFileError: While iterating, if a field is cut off, or its number or kind is unknown.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = read_varint(data, at, end)
        field, kind = key >> 3, key & 7
        if not 0 < field <= _LAST_FIELD:
            raise CorruptFileError(f"there is no field {field}")
        if kind == VARINT:
            value, at = read_varint(data, at, end)
            yield field, kind, value
            continue
        if kind == BYTES:
            size, at = read_varint(data, at, end)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise CorruptFileError(f"field {field} is of an unknown kind, {kind}")
        if size > end - at:
            raise CorruptFileError(f"field {field} is cut off")
        value = data[at : at + size]
        at += size
        yield field, kind, value if kind == BYTES else int.from_bytes(value, "little")


class ProtoMessage:
    """The fields of a message that are asked for; others are passed over.

    Args:
        data: The message.
        kinds: The fields that are asked for, with their kinds.

    Raises:
        CorruptFileError: The bytes are no message, or a field is of another kind.
    """

    def __init__(self, data: bytes, kinds: Mapping[int, int]) -> None:
        self._values: dict[int, list[int | bytes]] = {}
        for field, kind, value in iterate_fields(data):
            if field not in kinds:
                continue
            if kind != kinds[field]:
                raise CorruptFileError(f"field {field} is of kind {kind}, not {kinds[field]}")
            self._values.setdefault(field, []).append(value)

    def has(self, field: int) -> bool:
        """Return True if the message has a field."""
        return field in self._values

    def number(self, field: int) -> int:
        """Return the field as a number without sign, 0 if it is not there."""
        value = self._single_value(field)
        return value if isinstance(value, int) else 0

    def signed(self, field: int) -> int:
        """Return the field as an int32 or int64, 0 if it is not there."""
        value = self.number(field)
        return value - _WORD if value >= _WORD >> 1 else value

    def data(self, field: int) -> bytes:
        """Return the field's bytes, none if it is not there."""
        value = self._single_value(field)
        return value if isinstance(value, bytes) else b""

    def text(self, field: int) -> str:
        """Return the field as text, "" if it is not there."""
        return decode_text(self.data(field))

    def every(self, field: int) -> list[bytes]:
        """Return the bytes of a field that may come any number of times."""
        return [value for value in self._values.get(field, []) if isinstance(value, bytes)]

    def _single_value(self, field: int) -> int | bytes | None:
        values = self._values.get(field)
        if values is None:
            return None
        if len(values) > 1:
            raise CorruptFileError(f"field {field} comes {len(values)} times")
        return values[0]


def decode_text(data: bytes) -> str:
    """Bytes as text.

    Raises:
        CorruptFileError: They are no UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CorruptFileError(f"{data[:80]!r} is no UTF-8") from None


def number_field(field: int, value: int) -> bytes:
    """Return a field that is a number; nothing if it is 0."""
    return encode_varint(field << 3 | VARINT) + encode_varint(value) if value else b""


def fixed32_field(field: int, value: int) -> bytes:
    """Return a field of four bytes; nothing if it is 0."""
    return encode_varint(field << 3 | FIXED32) + value.to_bytes(4, "little") if value else b""


def bytes_field(field: int, data: bytes) -> bytes:
    """Return a field that is bytes or a message, also if it is empty."""
    return encode_varint(field << 3 | BYTES) + encode_varint(len(data)) + data


def string_field(field: int, value: str) -> bytes:
    """Return a field that is text; nothing if it is ""."""
    return bytes_field(field, value.encode()) if value else b""

"""Shapes, element types and attributes of HDF5 groups and datasets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from thalweg._base.lazy import lazy
from thalweg._formats.hdf5.headers import ATTRIBUTE, ATTRIBUTE_INFO, HeaderMessage
from thalweg._formats.hdf5.heaps import GlobalHeap, decode_name
from thalweg._formats.source import FilePart

_FIXED, _FLOAT, _TIME, _STRING, _BITS, _OPAQUE, _COMPOUND, _REFERENCE = range(8)
_ENUM, _VARIABLE, _ARRAY = 8, 9, 10
_KIND_NAMES = {
    _TIME: "times", _BITS: "bit fields", _COMPOUND: "records", _VARIABLE: "lists of any length",
    _ARRAY: "arrays in arrays",
}  # fmt: skip
# Precision, sign, exponent position and size, mantissa position and size, and exponent bias.
_IEEE = {
    (16, 15, 10, 5, 0, 10, 15): "F16",
    (16, 15, 7, 8, 0, 7, 127): "BF16",
    (32, 31, 23, 8, 0, 23, 127): "F32",
    (64, 63, 52, 11, 0, 52, 1023): "F64",
}
RANK = 32  # the limit of HDF5


@dataclass(frozen=True)
class Elements:
    """Type of the elements of an array.

    Attributes:
        dtype: A dtype of safetensors, "opaque" for raw bytes, "string" for text of a fixed length,
            or "text" for text of any length, which is stored in a heap.
        size: The number of bytes of an element.
        is_big_endian: True if the first byte of a number is the highest.
    """

    dtype: str
    size: int
    is_big_endian: bool = False


def parse_shape(payload: FilePart) -> tuple[int, ...] | None:
    """Return the shape in a dataspace message; () for a scalar, None for a null dataspace."""
    version = payload.take_version((1, 2), "shapes")
    rank, flags = payload.take_numbers(1, 1)
    kind = payload.take_number(1) if version == 2 else 1
    if version == 1:
        payload.take(5)
    if rank > RANK or kind > 2:
        raise payload.source.data_loss_error(
            payload.offset, f"a shape of {rank} dimensions, kind {kind}"
        )
    shape = tuple(payload.take_number(8) for _ in range(rank))
    if flags & 1:
        payload.take(8 * rank)
    return None if kind == 2 else shape


def parse_elements(payload: FilePart) -> Elements:
    """Return the element type in a datatype message.

    Raises:
        UnsafeCheckpointError: The elements are references.
        UnsupportedCheckpointError: The elements are neither numbers nor text.
    """
    source, begin = payload.source, payload.offset
    first, bits, size = payload.take_numbers(1, 3, 4)
    kind, version = first & 15, first >> 4
    if not 1 <= version <= 5:
        raise source.unsupported_error(begin, f"version {version} of types is not read")
    if kind == _REFERENCE:
        raise source.unsafe_error(begin, "elements are references")
    if kind == _VARIABLE and bits & 15 == 1 and size == 16:
        return Elements("text", size)
    if kind in _KIND_NAMES:
        raise source.unsupported_error(begin, f"{_KIND_NAMES[kind]} are not read")
    if not size:
        raise source.data_loss_error(begin, "elements of no bytes")
    if kind in (_STRING, _OPAQUE):
        return Elements("string" if kind == _STRING else "opaque", size)
    if kind == _ENUM:
        return _parse_boolean(payload, bits & 0xFFFF, version)
    if kind == _FLOAT:
        return _parse_float(payload, bits, size)
    if kind == _FIXED:
        return _parse_integer(payload, bits, size)
    raise source.unsupported_error(begin, f"elements of kind {kind} are not read")


def _parse_integer(payload: FilePart, bits: int, size: int) -> Elements:
    """Return the type of integers of `size` bytes; `bits` is the class bit field."""
    source, begin = payload.source, payload.offset
    offset, precision = payload.take_numbers(2, 2)
    if size not in (1, 2, 4, 8) or offset or precision != 8 * size:
        raise source.unsupported_error(begin, f"integers of {precision} bits are not read")
    return Elements(f"{'I' if bits & 8 else 'U'}{8 * size}", size, bool(bits & 1))


def _parse_float(payload: FilePart, bits: int, size: int) -> Elements:
    """Return the type of floats of `size` bytes; `bits` is the class bit field."""
    source, begin = payload.source, payload.offset
    offset, precision, *fields = payload.take_numbers(2, 2, 1, 1, 1, 1, 4)
    layout = (precision, bits >> 8 & 255, *fields)
    dtype = _IEEE.get(layout)  # pyright: ignore[reportArgumentType]
    # Bits 0 and 6 are the byte order, 4 and 5 the normalization of the mantissa.
    if dtype is None or offset or 8 * size != precision or bits >> 4 & 3 != 2 or bits & 64:
        raise source.unsupported_error(
            begin, f"floating point numbers of {precision} bits like these"
        )
    return Elements(dtype, size, bool(bits & 1))


def _parse_boolean(payload: FilePart, count: int, version: int) -> Elements:
    """Return the type of h5py's booleans, an enumeration of `count` members.

    Raise for other enumerations. `version` is the version of the message.
    """
    begin, base = payload.offset, parse_elements(payload)
    names = (b"FALSE\0", b"TRUE\0")
    expected = b"".join(name if version > 2 else name.ljust(8, b"\0") for name in names) + b"\0\1"
    if (count, base.dtype) == (2, "I8") and bytes(
        payload.data[-payload.left :][: len(expected)]
    ) == expected:
        return Elements("BOOL", 1)
    raise payload.source.unsupported_error(begin, "enumerations are not read")


class TextAttribute:
    """Text attribute of a group or a dataset.

    Args:
        payload: The attribute message.
        heap: The heap of variable-length texts.

    Attributes:
        name: The name.
    """

    def __init__(self, payload: FilePart, heap: GlobalHeap) -> None:
        version = payload.take_version((1, 2, 3), "attributes")
        flags, *sizes = payload.take_numbers(1, 2, 2, 2)
        if version > 1 and flags & 3:
            raise payload.source.unsupported_error(payload.offset, "named types are not read")
        payload.take(1 if version == 3 else 0)
        self._pieces: list[FilePart] = []
        for size in sizes:
            self._pieces.append(payload.take_part(size))
            if version == 1:
                payload.take(min(-size % 8, payload.left))
        name = self._pieces.pop(0)
        self.name = decode_name(name.source, name.offset, bytes(name.data).split(b"\0")[0])
        self._values, self._heap = payload, heap

    @lazy
    def texts(self) -> list[bytes]:
        """Elements of the attribute in row-major order, as a list of bytes objects.

        Raises:
            DataLossError: The elements are missing.
            UnsupportedCheckpointError: The elements are not text.
        """
        payload = self._values
        shape = parse_shape(self._pieces[1])
        count = 0 if shape is None else math.prod(shape)
        # An empty list has NumPy's default dtype, not text.
        if not count:
            return []
        kind = parse_elements(self._pieces[0])
        if kind.dtype not in ("string", "text"):
            raise payload.source.unsupported_error(payload.offset, f"{self.name!r} is no text")
        if count * kind.size > payload.left:
            text = f"{self.name!r} has {count} elements in {payload.left} bytes"
            raise payload.source.data_loss_error(payload.offset, text)
        pieces = [payload.take_part(kind.size) for _ in range(count)]
        if kind.dtype == "text":
            return [self._heap.text_at(piece) for piece in pieces]
        return [bytes(piece.data).rstrip(b"\0") for piece in pieces]


def attributes_of(messages: list[HeaderMessage], heap: GlobalHeap) -> dict[str, TextAttribute]:
    """Return {name: attribute} of a group or dataset from its header messages.

    Raises:
        DataLossError: A name exists twice.
        UnsupportedCheckpointError: There are so many attributes that they are in a heap.
    """
    attributes: dict[str, TextAttribute] = {}
    for kind, payload in messages:
        if kind == ATTRIBUTE_INFO:
            begin = payload.offset
            payload.take_version((0,), "attributes")
            payload.take(2 if payload.take_number(1) & 1 else 0)
            if payload.take_address() is not None:
                raise payload.source.unsupported_error(
                    begin, "more than eight attributes are not read"
                )
        elif kind == ATTRIBUTE:
            begin, attribute = payload.offset, TextAttribute(payload, heap)
            if attribute.name in attributes:
                text = f"attribute {attribute.name!r} is there twice"
                raise payload.source.data_loss_error(begin, text)
            attributes[attribute.name] = attribute
    return attributes

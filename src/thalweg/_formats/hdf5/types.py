"""Shape and element type of a dataset or an attribute."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._formats.source import FilePart

_FIXED, _FLOAT, _TIME, _STRING, _BITS, _OPAQUE, _COMPOUND, _REFERENCE = range(8)
_ENUM, _VARIABLE, _ARRAY = 8, 9, 10
_TITLES = {
    _TIME: "times",
    _BITS: "bit fields",
    _COMPOUND: "records",
    _VARIABLE: "lists of any length",
    _ARRAY: "arrays in arrays",
}
_IEEE = {  # width and place of sign, exponent, mantissa and the exponent's bias, in bits
    (16, 15, 10, 5, 0, 10, 15): "F16",
    (16, 15, 7, 8, 0, 7, 127): "BF16",
    (32, 31, 23, 8, 0, 23, 127): "F32",
    (64, 63, 52, 11, 0, 52, 1023): "F64",
}
RANK = 32  # the most that HDF5 has


@dataclass(frozen=True)
class Elements:
    """The type of elements.

    Attributes:
        dtype: A name of safetensors, "opaque" for bytes without a meaning, "string" for text of a
            fixed length, or "text" for text of any length, which lies elsewhere.
        size: How many bytes an element has.
        is_swapped: Whether the first byte of a number is the highest.
    """

    dtype: str
    size: int
    is_swapped: bool = False


def parse_shape(body: FilePart) -> tuple[int, ...] | None:
    """Return the shape that a message gives; None if there are no elements, not even one."""
    version = body.take_version((1, 2), "shapes")
    rank, flags = body.take_number(1), body.take_number(1)
    kind = body.take_number(1) if version == 2 else 1
    if version == 1:
        body.take(5)
    if rank > RANK or kind > 2:
        raise body.source.data_loss_error(body.offset, f"a shape of {rank} dimensions, kind {kind}")
    found = tuple(body.take_number(8) for _ in range(rank))
    if flags & 1:
        body.take(8 * rank)
    return None if kind == 2 else found


def parse_elements(body: FilePart) -> Elements:
    """Return the type that a message gives.

    Raises:
        UnsafeCheckpointError: The elements are references to other places.
        UnsupportedCheckpointError: They are neither numbers nor text.
    """
    source, begin = body.source, body.offset
    first, bits, size = body.take_number(1), body.take_number(3), body.take_number(4)
    kind, version = first & 15, first >> 4
    if not 1 <= version <= 5:
        raise source.unsupported_error(begin, f"version {version} of types is not read")
    if kind == _REFERENCE:
        raise source.unsafe_error(begin, "elements are references")
    if kind == _VARIABLE and bits & 15 == 1 and size == 16:
        return Elements("text", size)
    if kind in _TITLES:
        raise source.unsupported_error(begin, f"{_TITLES[kind]} are not read")
    if not size:
        raise source.data_loss_error(begin, "elements of no bytes")
    if kind in (_STRING, _OPAQUE):
        return Elements("string" if kind == _STRING else "opaque", size)
    if kind == _ENUM:
        return _parse_boolean(body, bits & 0xFFFF, version)
    if kind == _FLOAT:
        return _parse_float(body, bits, size)
    if kind == _FIXED:
        return _parse_integer(body, bits, size)
    raise source.unsupported_error(begin, f"elements of kind {kind} are not read")


def _parse_integer(body: FilePart, bits: int, size: int) -> Elements:
    source, begin = body.source, body.offset
    offset, precision = body.take_number(2), body.take_number(2)
    if size not in (1, 2, 4, 8) or offset or precision != 8 * size:
        raise source.unsupported_error(begin, f"integers of {precision} bits are not read")
    return Elements(f"{'I' if bits & 8 else 'U'}{8 * size}", size, bool(bits & 1))


def _parse_float(body: FilePart, bits: int, size: int) -> Elements:
    source, begin = body.source, body.offset
    offset, precision = body.take_number(2), body.take_number(2)
    places = tuple(body.take_number(1) for _ in range(4))
    given = (precision, bits >> 8 & 255, *places, body.take_number(4))
    dtype = _IEEE.get(given)  # pyright: ignore[reportArgumentType]
    # The order of bytes is in bits 0 and 6, which of the mantissa's bits is left out in 4 and 5.
    if dtype is None or offset or 8 * size != precision or bits >> 4 & 3 != 2 or bits & 64:
        raise source.unsupported_error(
            begin, f"floating point numbers of {precision} bits like these"
        )
    return Elements(dtype, size, bool(bits & 1))


def _parse_boolean(body: FilePart, count: int, version: int) -> Elements:
    """The enumeration that h5py has for booleans; others are refused."""
    begin, base = body.offset, parse_elements(body)
    names = (b"FALSE\0", b"TRUE\0")
    wanted = b"".join(each if version > 2 else each.ljust(8, b"\0") for each in names) + b"\0\1"
    if (count, base.dtype) == (2, "I8") and bytes(body.data[-body.left :][: len(wanted)]) == wanted:
        return Elements("BOOL", 1)
    raise body.source.unsupported_error(begin, "enumerations are not read")

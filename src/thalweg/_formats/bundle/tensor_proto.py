"""The numbers of a TensorProto, tensorflow/core/framework/tensor.proto: a field for each dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg._formats.bundle.dtypes import NAMES, name_of
from thalweg._formats.bundle.errors import CorruptFileError
from thalweg._formats.bundle.proto import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    iterate_fields,
    packed_numbers,
)
from thalweg._formats.stored_tensor import ITEM_BYTES

if TYPE_CHECKING:
    import numpy as np

# The field, and the kind of its numbers. Complex numbers are pairs.
_FIELDS = {
    "F32": (5, FIXED32),
    "F64": (6, FIXED64),
    "I32": (7, VARINT),
    "I16": (7, VARINT),
    "I8": (7, VARINT),
    "U8": (7, VARINT),
    "U16": (7, VARINT),
    "C64": (9, FIXED32),
    "I64": (10, VARINT),
    "BOOL": (11, VARINT),
    "C128": (12, FIXED64),
    "F16": (13, VARINT),
    "BF16": (13, VARINT),
    "U32": (16, VARINT),
    "U64": (17, VARINT),
}
_STRINGS = 8
_SIGNED = ("I8", "I16", "I32", "I64")
_WORD = 1 << 64


def tensor_bytes(data: bytes, dtype: int, count: int) -> np.ndarray[Any, Any]:
    """Return the bytes of a tensor.

    Args:
        data: The message.
        dtype: The number of the dtype.
        count: How many elements there are.

    Raises:
        CorruptFileError: There are more or fewer, or one is none of the dtype.
    """
    import numpy as np

    name = NAMES[dtype]
    if name not in _FIELDS:
        raise CorruptFileError(f"it is {name_of(dtype)}, which this format does not have")
    wanted, kind = _FIELDS[name]
    size = count * ITEM_BYTES[name]
    made = bytearray()
    for found, given, value in iterate_fields(data):
        if found == wanted and len(made) <= size:
            _append_field(made, value, given, kind, name)
    if len(made) != size:
        raise CorruptFileError(f"{len(made)} bytes are given, not {size}")
    return np.frombuffer(made, np.uint8)


def tensor_strings(data: bytes, count: int) -> list[bytes]:
    """Return the strings of a tensor; as `tensor_bytes` otherwise."""
    found = [value for each, _, value in iterate_fields(data) if each == _STRINGS]
    made = [value for value in found if isinstance(value, bytes)]
    if len(made) != count or len(found) != count:
        raise CorruptFileError(f"{len(made)} strings are given, not {count}")
    return made


def _append_field(made: bytearray, value: int | bytes, given: int, kind: int, name: str) -> None:
    """Append the elements of one field, which are packed or one alone."""
    if kind == VARINT and given == VARINT and isinstance(value, int):
        made += _encode_element(value, name)
    elif kind == VARINT and isinstance(value, bytes):
        for each in packed_numbers(value):
            made += _encode_element(each, name)
    elif given == BYTES and isinstance(value, bytes):
        made += value
    elif given == kind and isinstance(value, int):
        made += value.to_bytes(8 if kind == FIXED64 else 4, "little")
    else:
        raise CorruptFileError(f"its numbers are of kind {given}")


def _encode_element(value: int, name: str) -> bytes:
    size, is_signed = ITEM_BYTES[name], name in _SIGNED
    number = value - _WORD if is_signed and value >= _WORD >> 1 else value
    if name == "BOOL" and number > 1:
        raise CorruptFileError(f"{number} is no bool")
    try:
        return number.to_bytes(size, "little", signed=is_signed)
    except OverflowError:
        raise CorruptFileError(f"{number} is beyond {name}") from None

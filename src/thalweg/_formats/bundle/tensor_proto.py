"""Numbers of a TensorProto, tensorflow/core/framework/tensor.proto."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg._formats.bundle.contents import NAMES, name_of
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

# Field number, and kind of its numbers. Complex numbers are pairs.
_FIELDS = {
    "F32": (5, FIXED32), "F64": (6, FIXED64), "C64": (9, FIXED32), "C128": (12, FIXED64),
    **dict.fromkeys(("I32", "I16", "I8", "U8", "U16"), (7, VARINT)), "I64": (10, VARINT),
    "BOOL": (11, VARINT), "F16": (13, VARINT), "BF16": (13, VARINT), "U32": (16, VARINT),
    "U64": (17, VARINT),
}  # fmt: skip
_STRINGS = 8
_SIGNED = ("I8", "I16", "I32", "I64")
_WORD = 1 << 64


def tensor_bytes(serialized: bytes, dtype: int, count: int) -> np.ndarray[Any, Any]:
    """Return the bytes of the tensor in a TensorProto.

    Args:
        serialized: The serialized TensorProto.
        dtype: The number of the dtype.
        count: The number of elements.

    Raises:
        CorruptFileError: The number of elements is wrong, or one does not fit the dtype.
    """
    import numpy as np

    name = NAMES[dtype]
    if name not in _FIELDS:
        raise CorruptFileError(f"it is {name_of(dtype)}, which this format does not have")
    field, kind = _FIELDS[name]
    size = count * ITEM_BYTES[name]
    content = bytearray()
    for number, field_kind, payload in iterate_fields(serialized):
        if number == field and len(content) <= size:
            _append_field(content, payload, field_kind, kind, name)
    if len(content) != size:
        raise CorruptFileError(f"{len(content)} bytes are given, not {size}")
    return np.frombuffer(content, np.uint8)


def tensor_strings(serialized: bytes, count: int) -> list[bytes]:
    """Return the strings of the tensor in a TensorProto; see `tensor_bytes`."""
    payloads = [payload for number, _, payload in iterate_fields(serialized) if number == _STRINGS]
    strings = [payload for payload in payloads if isinstance(payload, bytes)]
    if len(strings) != count or len(payloads) != count:
        raise CorruptFileError(f"{len(strings)} strings are given, not {count}")
    return strings


def _append_field(
    content: bytearray, payload: int | bytes, field_kind: int, kind: int, name: str
) -> None:
    """Append the elements of one field, packed or single, to `content`."""
    if kind == VARINT and field_kind == VARINT and isinstance(payload, int):
        content += _encode_element(payload, name)
    elif kind == VARINT and isinstance(payload, bytes):
        for number in packed_numbers(payload):
            content += _encode_element(number, name)
    elif field_kind == BYTES and isinstance(payload, bytes):
        content += payload
    elif field_kind == kind and isinstance(payload, int):
        content += payload.to_bytes(8 if kind == FIXED64 else 4, "little")
    else:
        raise CorruptFileError(f"its numbers are of kind {field_kind}")


def _encode_element(raw_number: int, name: str) -> bytes:
    """Return the bytes of one element; raise CorruptFileError if it does not fit the dtype."""
    size, is_signed = ITEM_BYTES[name], name in _SIGNED
    number = raw_number - _WORD if is_signed and raw_number >= _WORD >> 1 else raw_number
    if name == "BOOL" and number > 1:
        raise CorruptFileError(f"{number} is no bool")
    try:
        return number.to_bytes(size, "little", signed=is_signed)
    except OverflowError:
        raise CorruptFileError(f"{number} is beyond {name}") from None

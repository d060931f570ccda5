"""TensorFlow's dtype numbers, as in tensorflow/core/framework/types.proto."""

from __future__ import annotations

STRING = 7
VARIANT = 21

# The names are those of `thalweg._formats.stored_tensor`.
NAMES = {
    1: "F32", 2: "F64", 3: "I32", 4: "U8", 5: "I16", 6: "I8", 8: "C64", 9: "I64", 10: "BOOL",
    14: "BF16", 17: "U16", 18: "C128", 19: "F16", 22: "U32", 23: "U64", 24: "F8_E5M2",
    25: "F8_E4M3",
}  # fmt: skip
NUMBERS = {name: number for number, name in NAMES.items()}

_UNSUPPORTED = {
    STRING: "string", 11: "qint8", 12: "quint8", 13: "qint32", 15: "qint16", 16: "quint16",
    20: "resource", VARIANT: "variant", 26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz",
    28: "float8_e5m2fnuz", 29: "int4", 30: "uint4", 31: "int2", 32: "uint2",
}  # fmt: skip


def name_of(number: int) -> str:
    """Return the name of a dtype: "F32", or TensorFlow's name if unsupported, such as "string"."""
    return NAMES.get(number) or _UNSUPPORTED.get(number) or f"unknown dtype {number}"

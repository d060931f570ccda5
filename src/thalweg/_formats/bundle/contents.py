"""Contents of a checkpoint of any format, with TensorFlow's dtype numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from thalweg._formats.bundle.errors import CorruptFileError, quote_name
from thalweg._formats.bundle.object_graph import ObjectGraph
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.errors import UnsupportedCheckpointError, listed

# Of tensorflow/core/framework/types.proto.
STRING = 7
VARIANT = 21

# The names are those of `thalweg._formats.stored_tensor`.
NAMES = {
    1: "F32", 2: "F64", 3: "I32", 4: "U8", 5: "I16", 6: "I8", 8: "C64", 9: "I64", 10: "BOOL",
    14: "BF16", 17: "U16", 18: "C128", 19: "F16", 22: "U32", 23: "U64", 24: "F8_E5M2",
    25: "F8_E4M3",
}  # fmt: skip
DTYPES = {name: number for number, name in NAMES.items()}

_UNSUPPORTED = {
    STRING: "string", 11: "qint8", 12: "quint8", 13: "qint32", 15: "qint16", 16: "quint16",
    20: "resource", VARIANT: "variant", 26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz",
    28: "float8_e5m2fnuz", 29: "int4", 30: "uint4", 31: "int2", 32: "uint2",
}  # fmt: skip


def name_of(number: int) -> str:
    """Return the name of a dtype: "F32", or TensorFlow's name if unsupported, such as "string"."""
    return NAMES.get(number) or _UNSUPPORTED.get(number) or f"unknown dtype {number}"


@dataclass(frozen=True, eq=False)
class Bundle:
    """Contents of a TensorFlow checkpoint.

    Attributes:
        tensors: {name: tensor}. Slices are joined.
        strings: {name: strings in row-major order}, without shapes.
        graph: The objects of an object checkpoint; None for a checkpoint of `tf.train.Saver`.
        variants: Names of objects that are not tensors, such as the state of an iterator.
    """

    tensors: dict[str, StoredTensor]
    strings: dict[str, list[bytes]]
    graph: ObjectGraph | None
    variants: tuple[str, ...] = ()


def check_dtypes(names_and_dtypes: Iterable[tuple[str, int]]) -> None:
    """Raise CorruptFileError if tensors have unsupported dtypes; the message lists the tensors.

    `names_and_dtypes` has (name, number of the dtype) pairs.
    """
    unsupported = [
        f"{quote_name(name)} ({name_of(dtype)})"
        for name, dtype in names_and_dtypes
        if dtype not in NAMES and dtype != STRING
    ]
    if unsupported:
        raise CorruptFileError(
            f"{listed(unsupported)}: tensors of such dtypes are not read;"
            " give the names of those that you want",
            UnsupportedCheckpointError,
        )

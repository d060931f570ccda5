"""Contents of a checkpoint, of any format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from thalweg._formats.bundle.dtypes import NAMES, STRING, name_of
from thalweg._formats.bundle.errors import CorruptFileError, quote_name
from thalweg._formats.bundle.object_graph import ObjectGraph
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.errors import UnsupportedCheckpointError, listed


@dataclass(frozen=True, eq=False)
class Bundle:
    """Contents of a TensorFlow checkpoint.

    Attributes:
        tensors: Tensors by name. Slices are put together.
        strings: Tensors of strings, row by row, without their shapes.
        graph: The objects of an object checkpoint; None if it is one of `tf.train.Saver`.
        variants: Names of objects that are not tensors, such as the state of an iterator.
    """

    tensors: dict[str, StoredTensor]
    strings: dict[str, list[bytes]]
    graph: ObjectGraph | None
    variants: tuple[str, ...] = ()


def check_dtypes(names_and_dtypes: Iterable[tuple[str, int]]) -> None:
    """Raise if tensors have unsupported dtypes.

    Args:
        names_and_dtypes: Names, with the numbers of their dtypes.

    Raises:
        CorruptFileError: Lists the tensors with unsupported dtypes.
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

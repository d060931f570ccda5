"""Checkpoints of TensorFlow's first format, which `tf.train.Saver` wrote until version 1.0.

A file, or each of several, is a table. Its first value describes the tensors, each in one or more
slices; then there is a value for each slice with its numbers. The messages are those of
tensorflow/core/util/saved_tensor_slice.proto. Blocks have checksums, tensors have none.
"""

from __future__ import annotations

import re
from collections.abc import Container, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from thalweg._formats.bundle import messages, slices
from thalweg._formats.bundle.checkpoint_directory import File, Folder
from thalweg._formats.bundle.contents import Bundle, Progress, check_dtypes
from thalweg._formats.bundle.dtypes import NAMES, STRING, name_of
from thalweg._formats.bundle.errors import CorruptFileError, locate_flaws, quote_name
from thalweg._formats.bundle.index import LARGEST, SHARDS
from thalweg._formats.bundle.messages import Slice
from thalweg._formats.bundle.proto import BYTES, VARINT, ProtoMessage
from thalweg._formats.bundle.table import is_table, iterate_entries
from thalweg._formats.bundle.tensor_proto import tensor_bytes, tensor_strings
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor, TensorInfo
from thalweg.errors import MissingFileError, UnsupportedCheckpointError

if TYPE_CHECKING:
    import numpy as np

_COUNT = b"\x08"  # what the first value of an index of the later format begins with
_FIRST = re.compile(r"-00000-of-([0-9]{5})")


@dataclass
class _Tensor:
    """A tensor as the first values of the tables describe it.

    Attributes:
        dtype: The number of its dtype.
        shape: Its shape.
        slices: Its slices, by the keys of their values.
    """

    dtype: int
    shape: tuple[int, ...]
    slices: dict[bytes, Slice] = field(default_factory=dict[bytes, Slice])

    def shape_of(self, key: bytes) -> tuple[int, ...]:
        """Return the shape of a slice."""
        return slices.bounding_box(self.slices[key], self.shape)[1]

    @property
    def bytes(self) -> int:
        """Number of bytes of the tensor."""
        return prod(self.shape) * ITEM_BYTES.get(NAMES.get(self.dtype, ""), 0)


def suffixes_of(folder: Folder) -> list[str]:
    """Return the suffixes of the files of such a checkpoint, behind its prefix; [] if it is not
    one.

    Args:
        folder: The folder of the prefix.
    """
    found = [""] if is_table_file(folder, "") else []
    for suffix in () if found else folder.list_suffixes():
        first = _FIRST.fullmatch(suffix)
        if first and 0 < int(first[1]) <= SHARDS and is_table_file(folder, suffix):
            found = [f"-{number:05d}-of-{first[1]}" for number in range(int(first[1]))]
    return found


def read(
    folder: Folder, suffixes: list[str], names: Container[str] | None, progress: Progress | None
) -> Bundle:
    """Return the tensors of such a checkpoint.

    Args:
        folder: The folder of its files.
        suffixes: What `suffixes_of` says.
        names: The tensors that are read; all if it is None.
        progress: Called after each file with the bytes that are read and those there are.

    Raises:
        CorruptFileError: A file is damaged, or a tensor is of a dtype that is not read.
    """
    known, total = _describe_files(folder, suffixes)
    done = 0
    wanted = {name: each for name, each in known.items() if names is None or name in names}
    check_dtypes((name, each.dtype) for name, each in wanted.items())
    owners = {key: name for name, each in known.items() for key in each.slices}
    found: dict[bytes, Any] = {}
    for suffix in suffixes:
        with _open_file(folder, suffix) as file:
            values = iterate_entries(file.read, file.size)
            next(values, None)
            for key, value in values:
                if key not in owners or key in found:
                    raise CorruptFileError(
                        f"the slice {quote_name(key)} belongs to no tensor, or comes twice"
                    )
                name = owners[key]
                if name in wanted:
                    with locate_flaws(quote_name(name)):
                        found[key] = _slice_values(value, wanted[name], key)
            done += file.size
        if progress is not None:
            progress(done, total)
    tensors: dict[str, StoredTensor] = {}
    texts: dict[str, list[bytes]] = {}
    for name, tensor in wanted.items():
        with locate_flaws(quote_name(name)):
            parts = {key: found.pop(key, None) for key in tensor.slices}
            if any(part is None for part in parts.values()):
                raise CorruptFileError("a slice of it is not there")
            if tensor.dtype == STRING:
                texts[name] = next(iter(parts.values()))
            else:
                tensors[name] = _join_slices(tensor, parts)
    return Bundle(tensors, texts, None)


def describe(folder: Folder, suffixes: list[str]) -> list[TensorInfo]:
    """Return the tensors of such a checkpoint by name; as `read` otherwise."""
    return [
        TensorInfo(name, name_of(each.dtype), each.shape, each.bytes)
        for name, each in sorted(_describe_files(folder, suffixes)[0].items())
    ]


def is_table_file(folder: Folder, suffix: str) -> bool:
    """Return True if there is a file whose end is that of a table."""
    try:
        with _open_file(folder, suffix) as file:
            return is_table(file.read, file.size)
    except (MissingFileError, CorruptFileError):
        return False


@contextmanager
def _open_file(folder: Folder, suffix: str) -> Generator[File]:
    with locate_flaws(suffix or "file"):
        file = folder.open_file(suffix)
        try:
            yield file
        finally:
            file.close()


def _describe_files(folder: Folder, suffixes: list[str]) -> tuple[dict[str, _Tensor], int]:
    """All tensors of all files, and how many bytes these have."""
    known: dict[str, _Tensor] = {}
    total = 0
    for suffix in suffixes:
        with _open_file(folder, suffix) as file:
            total += file.size
            key, value = next(iterate_entries(file.read, file.size), (b"\0", b""))
            if key:
                raise CorruptFileError("it has no description of its tensors")
            if value.startswith(_COUNT):
                raise CorruptFileError(
                    "it is the index of a later checkpoint under another name: TensorFlow calls it"
                    " model.index, beside model.data-00000-of-00001",
                    UnsupportedCheckpointError,
                )
            described = ProtoMessage(ProtoMessage(value, {1: BYTES}).data(1), {1: BYTES})
            for each in described.every(1):
                _add_slices(known, ProtoMessage(each, {1: BYTES, 2: BYTES, 3: VARINT, 4: BYTES}))
    for name, tensor in known.items():
        with locate_flaws(quote_name(name)):
            _check_tensor(tensor)
    return known, total


def _add_slices(known: dict[str, _Tensor], found: ProtoMessage) -> None:
    """Add what a SavedSliceMeta says: a tensor, or more slices of one."""
    name = found.text(1)
    with locate_flaws(quote_name(name)):
        shape, dtype = messages.parse_shape(found.data(2)), found.number(3)
        tensor = known.setdefault(name, _Tensor(dtype, shape))
        if (tensor.dtype, tensor.shape) != (dtype, shape):
            raise CorruptFileError(
                f"it is of shape {tensor.shape} in one file and of {shape} in another"
            )
        for each in found.every(4):
            extents = messages.slice_of(each)
            slices.bounding_box(extents, shape)
            key = slices.key_of(name, extents)
            if key in tensor.slices:
                raise CorruptFileError(f"the slice {slices.format_extents(extents)} comes twice")
            tensor.slices[key] = extents


def _check_tensor(tensor: _Tensor) -> None:
    """Refuse a description that cannot be true."""
    if not tensor.slices or (tensor.dtype == STRING and len(tensor.slices) > 1):
        raise CorruptFileError(f"it is {name_of(tensor.dtype)} in {len(tensor.slices)} slices")
    if prod(length for length in tensor.shape if length) * 16 >= LARGEST:
        raise CorruptFileError(f"its shape is {tensor.shape}, beyond all memory")
    slices.check_count([tensor.shape_of(key) for key in tensor.slices], tensor.shape)


def _slice_values(value: bytes, tensor: _Tensor, key: bytes) -> object:
    """The bytes of a slice, or its strings."""
    data = ProtoMessage(ProtoMessage(value, {2: BYTES}).data(2), {3: BYTES}).data(3)
    count = prod(tensor.shape_of(key))
    if tensor.dtype == STRING:
        return tensor_strings(data, count)
    return tensor_bytes(data, tensor.dtype, count)


def _join_slices(tensor: _Tensor, parts: dict[bytes, np.ndarray[Any, Any]]) -> StoredTensor:
    """A tensor from its slices, all of which are there."""
    kind = NAMES[tensor.dtype]
    if len(parts) == 1:
        return StoredTensor(kind, tensor.shape, next(iter(parts.values())).data)
    boxes = {
        key: slices.bounding_box(extents, tensor.shape) for key, extents in tensor.slices.items()
    }
    slices.check_tiling(boxes.values(), tensor.shape)
    placed = ((*boxes[key], part) for key, part in parts.items())
    whole = slices.join_parts(placed, tensor.shape, ITEM_BYTES[kind])
    return StoredTensor(kind, tensor.shape, whole.data)

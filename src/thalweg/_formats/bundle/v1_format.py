"""TensorFlow's first checkpoint format, which `tf.train.Saver` wrote until version 1.0.

A file, or each of several, is a table. Its first entry describes the tensors, each in one or more
slices; then there is an entry for each slice with its numbers. The messages are those of
tensorflow/core/util/saved_tensor_slice.proto. Blocks have checksums, tensors have none.
"""

from __future__ import annotations

import re
from collections.abc import Container, Generator, Iterable
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from thalweg._formats.atomic_write import Progress
from thalweg._formats.bundle import messages, slices
from thalweg._formats.bundle.checkpoint_directory import File, Folder
from thalweg._formats.bundle.contents import NAMES, STRING, Bundle, check_dtypes, name_of
from thalweg._formats.bundle.errors import CorruptFileError, locate_flaws, quote_name
from thalweg._formats.bundle.index import LARGEST, SHARDS
from thalweg._formats.bundle.proto import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    ProtoMessage,
    iterate_fields,
    packed_numbers,
)
from thalweg._formats.bundle.table import is_table, iterate_entries
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor, TensorInfo
from thalweg.errors import MissingFileError, UnsupportedCheckpointError

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
    """Return the bytes of a tensor of `count` elements in a serialized TensorProto.

    `dtype` is the number of the dtype. Raise CorruptFileError if the number of elements is wrong,
    or an element does not fit the dtype.
    """
    import numpy as np

    name = NAMES[dtype]
    if name not in _FIELDS:
        raise CorruptFileError(f"it is {name_of(dtype)}, which this format does not have")
    field, kind = _FIELDS[name]
    size = count * ITEM_BYTES[name]
    content = bytearray()
    for field_id, field_kind, payload in iterate_fields(serialized):
        if field_id != field or len(content) > size:
            continue
        if isinstance(payload, bytes) and kind != VARINT:
            # Numbers of fixed size are packed as they are stored here.
            content += payload
        elif isinstance(payload, bytes) or field_kind == kind == VARINT:
            for number in packed_numbers(payload) if isinstance(payload, bytes) else [payload]:
                content += _encode_element(number, name)
        elif field_kind == kind:
            content += payload.to_bytes(8 if kind == FIXED64 else 4, "little")
        else:
            raise CorruptFileError(f"its numbers are of kind {field_kind}")
    if len(content) != size:
        raise CorruptFileError(f"{len(content)} bytes are given, not {size}")
    return np.frombuffer(content, np.uint8)


def tensor_strings(serialized: bytes, count: int) -> list[bytes]:
    """Return the strings of the tensor in a TensorProto; raise unless there are `count`."""
    payloads = [
        payload for field_id, _, payload in iterate_fields(serialized) if field_id == _STRINGS
    ]
    strings = [payload for payload in payloads if isinstance(payload, bytes)]
    if len(strings) != count or len(payloads) != count:
        raise CorruptFileError(f"{len(strings)} strings are given, not {count}")
    return strings


def _encode_element(raw_element: int, name: str) -> bytes:
    """Return the bytes of a varint as dtype `name`; raise CorruptFileError if it does not fit."""
    size, is_signed = ITEM_BYTES[name], name in _SIGNED
    element = raw_element - _WORD if is_signed and raw_element >= _WORD >> 1 else raw_element
    if name == "BOOL" and element > 1:
        raise CorruptFileError(f"{element} is no bool")
    try:
        return element.to_bytes(size, "little", signed=is_signed)
    except OverflowError:
        raise CorruptFileError(f"{element} is beyond {name}") from None


_COUNT = b"\x08"  # first byte of an index of the later format
_FIRST = re.compile(r"-00000-of-([0-9]{5})")


@dataclass
class _Tensor:
    """Dtype, shape and slices of a tensor.

    Attributes:
        dtype: The number of the dtype.
        shape: The shape.
        slices: {key of the slice's entry: (origin, shape)}.
    """

    dtype: int
    shape: tuple[int, ...]
    slices: dict[bytes, slices.Box] = field(default_factory=dict[bytes, Any])

    @property
    def bytes(self) -> int:
        """Number of bytes of the tensor."""
        return prod(self.shape) * ITEM_BYTES.get(NAMES.get(self.dtype, ""), 0)


def suffixes_of(directory: Folder) -> list[str]:
    """Return the suffixes of the files of a first-format checkpoint; [] for other formats."""
    suffixes = [""] if is_table_file(directory, "") else []
    for suffix in () if suffixes else directory.list_suffixes():
        first = _FIRST.fullmatch(suffix)
        if first and 0 < int(first[1]) <= SHARDS and is_table_file(directory, suffix):
            suffixes = [f"-{index:05d}-of-{first[1]}" for index in range(int(first[1]))]
    return suffixes


def read(
    directory: Folder, suffixes: list[str], names: Container[str] | None, progress: Progress | None
) -> Bundle:
    """Return the tensors of a first-format checkpoint.

    Args:
        directory: The directory of the files.
        suffixes: The suffixes of the files, as `suffixes_of` returns them.
        names: The tensors to read; None for all.
        progress: `progress(bytes_read, total_bytes)` is called after each file.

    Raises:
        CorruptFileError: A file is damaged, or a tensor has an unsupported dtype.
    """
    all_tensors, total = _describe_files(directory, suffixes)
    bytes_read = 0
    requested = {
        name: tensor for name, tensor in all_tensors.items() if names is None or name in names
    }
    check_dtypes((name, tensor.dtype) for name, tensor in requested.items())
    names_by_key = {key: name for name, tensor in all_tensors.items() for key in tensor.slices}
    contents: dict[bytes, Any] = {}
    for suffix in suffixes:
        with _open_file(directory, suffix) as file:
            entries = iterate_entries(file.read, file.size)
            # `_describe_files` has read the first entry.
            next(entries, None)
            for key, serialized in entries:
                if key not in names_by_key or key in contents:
                    raise CorruptFileError(
                        f"the slice {quote_name(key)} belongs to no tensor, or comes twice"
                    )
                name = names_by_key[key]
                if name in requested:
                    with locate_flaws(quote_name(name)):
                        contents[key] = _slice_values(serialized, requested[name], key)
            bytes_read += file.size
        if progress is not None:
            progress(bytes_read, total)
    tensors: dict[str, StoredTensor] = {}
    texts: dict[str, list[bytes]] = {}
    for name, tensor in requested.items():
        with locate_flaws(quote_name(name)):
            pieces = {key: contents.pop(key, None) for key in tensor.slices}
            if any(piece is None for piece in pieces.values()):
                raise CorruptFileError("a slice of it is not there")
            if tensor.dtype == STRING:
                texts[name] = next(iter(pieces.values()))
            else:
                tensors[name] = _join_slices(tensor, pieces.values())
    return Bundle(tensors, texts, None)


def describe(directory: Folder, suffixes: list[str]) -> list[TensorInfo]:
    """Return the descriptions of all tensors of a first-format checkpoint, by name; see `read`."""
    return [
        TensorInfo(name, name_of(tensor.dtype), tensor.shape, tensor.bytes)
        for name, tensor in sorted(_describe_files(directory, suffixes)[0].items())
    ]


def is_table_file(directory: Folder, suffix: str) -> bool:
    """Return True if the file exists and ends as a table does."""
    try:
        with _open_file(directory, suffix) as file:
            return is_table(file.read, file.size)
    except (MissingFileError, CorruptFileError):
        return False


@contextmanager
def _open_file(directory: Folder, suffix: str) -> Generator[File]:
    """Return a context manager that opens a file and adds its name to errors."""
    with locate_flaws(suffix or "file"), closing(directory.open_file(suffix)) as file:
        yield file


def _describe_files(directory: Folder, suffixes: list[str]) -> tuple[dict[str, _Tensor], int]:
    """Return ({name: tensor} of a checkpoint, total size of its files in bytes).

    Raise CorruptFileError if a file lacks the list of its tensors, or slices are impossible.
    """
    tensors: dict[str, _Tensor] = {}
    total = 0
    for suffix in suffixes:
        with _open_file(directory, suffix) as file:
            total += file.size
            key, serialized = next(iterate_entries(file.read, file.size), (b"\0", b""))
            if key:
                raise CorruptFileError("it has no description of its tensors")
            if serialized.startswith(_COUNT):
                raise CorruptFileError(
                    "it is the index of a later checkpoint under another name: TensorFlow calls it"
                    " model.index, beside model.data-00000-of-00001",
                    UnsupportedCheckpointError,
                )
            message = ProtoMessage(ProtoMessage(serialized, {1: BYTES}).data(1), {1: BYTES})
            for element in message.every(1):
                kinds = {1: BYTES, 2: BYTES, 3: VARINT, 4: BYTES}
                _add_slices(tensors, ProtoMessage(element, kinds))
    for name, tensor in tensors.items():
        with locate_flaws(quote_name(name)):
            _check_tensor(tensor)
    return tensors, total


def _add_slices(described: dict[str, _Tensor], message: ProtoMessage) -> None:
    """Add the tensor and the slices in a SavedSliceMeta message to `described`."""
    name = message.text(1)
    with locate_flaws(quote_name(name)):
        shape, dtype = messages.parse_shape(message.data(2)), message.number(3)
        tensor = described.setdefault(name, _Tensor(dtype, shape))
        if (tensor.dtype, tensor.shape) != (dtype, shape):
            raise CorruptFileError(
                f"it is of shape {tensor.shape} in one file and of {shape} in another"
            )
        for element in message.every(4):
            extents = messages.slice_of(element)
            box = slices.bounding_box(extents, shape)
            key = slices.key_of(name, extents)
            if key in tensor.slices:
                raise CorruptFileError(f"the slice {slices.format_extents(extents)} comes twice")
            tensor.slices[key] = box


def _check_tensor(tensor: _Tensor) -> None:
    """Raise CorruptFileError for a description with impossible slices or shape."""
    if not tensor.slices or (tensor.dtype == STRING and len(tensor.slices) > 1):
        raise CorruptFileError(f"it is {name_of(tensor.dtype)} in {len(tensor.slices)} slices")
    if prod(length for length in tensor.shape if length) * 16 >= LARGEST:
        raise CorruptFileError(f"its shape is {tensor.shape}, beyond all memory")
    slices.check_count([shape for _, shape in tensor.slices.values()], tensor.shape)


def _slice_values(serialized: bytes, tensor: _Tensor, key: bytes) -> object:
    """Return the bytes of a slice as an array, or its strings as a list."""
    content = ProtoMessage(ProtoMessage(serialized, {2: BYTES}).data(2), {3: BYTES}).data(3)
    count = prod(tensor.slices[key][1])
    if tensor.dtype == STRING:
        return tensor_strings(content, count)
    return tensor_bytes(content, tensor.dtype, count)


def _join_slices(tensor: _Tensor, contents: Iterable[np.ndarray[Any, Any]]) -> StoredTensor:
    """Return a tensor joined from the bytes of all its slices."""
    kind, boxes = NAMES[tensor.dtype], tensor.slices.values()
    content = slices.join_parts(boxes, contents, tensor.shape, ITEM_BYTES[kind])
    return StoredTensor(kind, tensor.shape, content.data)

"""Writing of bundles that TensorFlow restores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from math import prod

from thalweg._formats import atomic_write
from thalweg._formats.atomic_write import Path, Progress
from thalweg._formats.bundle import object_graph
from thalweg._formats.bundle.contents import DTYPES, STRING
from thalweg._formats.bundle.errors import quote_name
from thalweg._formats.bundle.messages import RANK, BundleEntry
from thalweg._formats.bundle.object_graph import ObjectGraph
from thalweg._formats.bundle.proto import bytes_field, number_field
from thalweg._formats.bundle.table import encoded_table
from thalweg._formats.bundle.tensors import encoded_strings
from thalweg._formats.checksum import crc32c, mask_checksum
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor
from thalweg.errors import InvalidArgumentError, UnsupportedCheckpointError

# A BundleHeaderProto: one data file, little-endian, written by version 1.
_HEADER = number_field(1, 1) + bytes_field(3, number_field(1, 1))


def write(
    prefix: Path,
    stored_tensors: Mapping[str, StoredTensor],
    graph: ObjectGraph | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a checkpoint: `prefix.data-00000-of-00001`, and then `prefix.index`.

    Both files are byte for byte as from TensorFlow's `SaveV2`. Both files are on the disk before
    they are renamed, so a full disk leaves an old checkpoint unchanged. After a crash between the
    two renames, reading raises DataLossError. So use a new prefix for each checkpoint, as
    TensorFlow does.

    Args:
        prefix: The path for TensorFlow; the directory must exist.
        stored_tensors: {name: tensor}.
        graph: The object graph, for `tf.train.Checkpoint`; None for `tf.train.Saver`.
        progress: `progress(bytes_written, total_bytes)` is called during writing.

    Raises:
        InvalidArgumentError: A name is empty, not Unicode, or reserved by TensorFlow; or a tensor
            has more or fewer bytes than its shape.
        UnsupportedCheckpointError: TensorFlow does not have the dtype of a tensor.
        CheckpointWriteError: A file cannot be written.
    """
    path = os.fspath(prefix)
    pairs = stored_tensors.items()
    tensors_by_key = {_key_of(name): _check_tensor(name, tensor) for name, tensor in pairs}
    objects, checksum = b"", 0
    if graph is not None:
        objects, checksum = encoded_strings([object_graph.encode_graph(graph)])
    entries: dict[bytes, bytes] = {b"": _HEADER}

    def data_parts() -> Iterator[bytes | memoryview]:
        """Yield the bytes of all tensors in file order; add their index entries to `entries`."""
        offset = 0
        for key in _in_order(tensors_by_key, graph):
            tensor = tensors_by_key[key]
            location = 0, offset, len(tensor.data), mask_checksum(crc32c(tensor.data))
            entries[key] = BundleEntry(
                DTYPES[tensor.dtype], tensor.shape, *location
            ).encode_message()
            offset += len(tensor.data)
            yield tensor.data
        if graph is not None:
            entry = BundleEntry(STRING, (), 0, offset, len(objects), mask_checksum(checksum))
            entries[object_graph.KEY.encode()] = entry.encode_message()
            yield objects

    total = sum(len(tensor.data) for tensor in tensors_by_key.values()) + len(objects)

    def files_to_write() -> Iterator[tuple[str, Iterable[bytes | memoryview], int]]:
        """Yield path, bytes and size of the data file, then of the index."""
        yield f"{path}.data-00000-of-00001", data_parts(), total
        # `data_parts` has added all entries by now.
        index = encoded_table(sorted(entries.items()))
        yield f"{path}.index", [index], len(index)

    atomic_write.replace_together(files_to_write(), progress)


def _in_order(
    tensors_by_key: Mapping[bytes, StoredTensor], graph: ObjectGraph | None
) -> list[bytes]:
    """Return the keys in TensorFlow's order of data: by object, then by name."""
    nodes = () if graph is None else graph.nodes
    keys = (attribute.key.encode() for node in nodes for attribute in node.attributes)
    first = [key for key in dict.fromkeys(keys) if key in tensors_by_key]
    return [*first, *sorted(tensors_by_key.keys() - set(first))]


def _key_of(name: str) -> bytes:
    """Return the encoded name of a tensor; raise InvalidArgumentError for invalid names."""
    try:
        key = name.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"The name {quote_name(name)} is no Unicode.") from None
    if not key or key.startswith(b"\0") or name == object_graph.KEY:
        raise InvalidArgumentError(
            f"No tensor can be named {quote_name(name)} in a checkpoint of TensorFlow, where that"
            " has a meaning of its own."
        )
    return key


def _check_tensor(name: str, tensor: StoredTensor) -> StoredTensor:
    """Return `tensor` unchanged; raise if its dtype, rank or size cannot be stored."""
    if tensor.dtype not in DTYPES:
        raise UnsupportedCheckpointError(
            f"{quote_name(name)} is {tensor.dtype}, which checkpoints of TensorFlow do not have."
        )
    if len(tensor.shape) > RANK:
        raise InvalidArgumentError(
            f"{quote_name(name)} has {len(tensor.shape)} axes, TensorFlow has {RANK} at most."
        )
    size = prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
    if len(tensor.data) != size:
        raise InvalidArgumentError(
            f"{quote_name(name)} has {len(tensor.data)} bytes, {tensor.dtype} of shape"
            f" {tensor.shape} has {size}."
        )
    return tensor

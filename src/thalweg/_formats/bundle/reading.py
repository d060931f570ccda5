"""Reading of TensorFlow checkpoints."""

from __future__ import annotations

import os
import re
from collections.abc import Container
from dataclasses import replace

from thalweg._formats import atomic_write, format_detection
from thalweg._formats.atomic_write import Path, Progress
from thalweg._formats.bundle import object_graph, v1_format
from thalweg._formats.bundle.checkpoint_directory import Folder
from thalweg._formats.bundle.contents import VARIANT, Bundle, check_dtypes, name_of
from thalweg._formats.bundle.errors import CorruptFileError, raise_flaws
from thalweg._formats.bundle.index import Index, read_index
from thalweg._formats.bundle.tensors import BundleReader
from thalweg._formats.stored_tensor import TensorInfo
from thalweg.errors import MissingFileError

_FILE = re.compile(r"(\.index|\.data-[0-9]{5}-of-[0-9]{5})\Z")


def read(
    prefix: Path, names: Container[str] | None = None, progress: Progress | None = None
) -> Bundle:
    """Read a checkpoint of `tf.train.Saver` or `tf.train.Checkpoint`.

    Reading a checkpoint of TensorFlow before 1.0 temporarily needs several times the memory of the
    tensors. In later checkpoints, only tensors stored in slices need additional memory.

    Args:
        prefix: The path that TensorFlow uses, "run7/model.ckpt-5", or the index or a data file.
        names: The tensors to read; all by default. The object graph is always read.
        progress: `progress(bytes_read, total_bytes)` is called during reading.

    Returns:
        The tensors, in new memory. States of data iterators (dtype variant) are skipped; a state in
        `names` raises.

    Raises:
        MissingFileError: A file does not exist.
        DataLossError: A file is damaged.
        UnsupportedCheckpointError: A dtype is not supported, the index is compressed, or numbers
            are big-endian.
        UnsafeCheckpointError: A file is a link.
    """
    path = _prefix_of(prefix)
    with raise_flaws(path), Folder(path) as directory:
        index = _find_index(path, directory)
        if isinstance(index, list):
            return v1_format.read(directory, index, names, progress)
        requested = {
            name: tensor
            for name, tensor in index.tensors.items()
            if names is None or name in names or name == object_graph.KEY
        }
        variants = {name for name, tensor in requested.items() if tensor.dtype == VARIANT}
        if names is None:
            requested = {name: requested[name] for name in requested if name not in variants}
        check_dtypes((name, tensor.dtype) for name, tensor in requested.items())
        bundle = BundleReader(directory, index, requested, progress).read_bundle()
    graph = bundle.graph
    if graph is not None:
        # Objects keep only values that are tensors.
        skipped = variants | bundle.strings.keys()
        graph = object_graph.select_values(graph, lambda key: key not in skipped)
    return replace(bundle, graph=graph, variants=tuple(variants))


def describe(prefix: Path) -> list[TensorInfo]:
    """Return the descriptions of a checkpoint's tensors, by name; only the index is read.

    Args:
        prefix: The path that TensorFlow uses, the path of the index, or the path of a data file.

    Raises:
        MissingFileError: The index does not exist.
        DataLossError: The index is damaged.
        UnsupportedCheckpointError: The index is compressed, or numbers are big-endian.
        UnsafeCheckpointError: The index is a link.
    """
    path = _prefix_of(prefix)
    with raise_flaws(path), Folder(path) as directory:
        index = _find_index(path, directory)
        if isinstance(index, list):
            return v1_format.describe(directory, index)
    return [
        TensorInfo(name, name_of(tensor.dtype), tensor.shape, tensor.size)
        for name, tensor in index.tensors.items()
    ]


def is_bundle(prefix: Path) -> bool:
    """Return True if a TensorFlow checkpoint has this prefix; only the end of its index is read."""
    try:
        with Folder(_prefix_of(prefix)) as directory:
            return v1_format.is_table_file(directory, ".index") or bool(
                v1_format.suffixes_of(directory)
            )
    except (OSError, ValueError, CorruptFileError):
        return False


def _find_index(path: str, directory: Folder) -> Index | list[str]:
    """Return the index of a checkpoint, or the file suffixes of a first-format checkpoint.

    Raises:
        MissingFileError: No file of a checkpoint exists.
        ThalwegError: `path` is a file of another format. The message names the format.
    """
    try:
        return read_index(directory)
    except MissingFileError:
        suffixes = v1_format.suffixes_of(directory)
        if suffixes:
            return suffixes
        if not os.path.isfile(path):
            raise
    with atomic_write.open_for_reading(path) as stream:
        raise format_detection.refusal_error(path, stream, "checkpoint of TensorFlow")


def _prefix_of(path: Path) -> str:
    """Return the prefix of a checkpoint; `path` may be the prefix or one of its files."""
    name = os.fspath(path)
    is_prefix = os.path.lexists(f"{name}.index")
    return name if is_prefix else _FILE.sub("", name)

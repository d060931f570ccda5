"""Reading checkpoints of TensorFlow: all of what is asked for, or nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Container
from dataclasses import replace

from thalweg._formats import atomic_write, format_detection
from thalweg._formats.bundle import object_graph, v1_format
from thalweg._formats.bundle.checkpoint_directory import Folder
from thalweg._formats.bundle.contents import Bundle, Path, Progress, check_dtypes
from thalweg._formats.bundle.dtypes import VARIANT, name_of
from thalweg._formats.bundle.errors import CorruptFileError, raise_flaws
from thalweg._formats.bundle.index import read_index
from thalweg._formats.bundle.tensors import BundleReader
from thalweg._formats.stored_tensor import TensorInfo
from thalweg.errors import MissingFileError

_FILE = re.compile(r"(\.index|\.data-[0-9]{5}-of-[0-9]{5})\Z")


def read(
    prefix: Path, names: Container[str] | None = None, progress: Progress | None = None
) -> Bundle:
    """Read a checkpoint of `tf.train.Saver` or `tf.train.Checkpoint`, all of it or nothing.

    Files of the first format, which TensorFlow wrote until 1.0, are read as well.

    Memory is what the tensors take; of a tensor in slices one more slice, and a byte per element.
    Those of the first format take several times as much for a while.

    Args:
        prefix: What TensorFlow calls its path: "run7/model.ckpt-5"; or the name of its index or
            of a file of its data.
        names: The tensors that are read; all by default. The object graph is read in any case.
        progress: Called now and then with the bytes that are read and those there are.

    Returns:
        The tensors, whose memory nobody else has. The state of iterators over data, which is of
        dtype variant, is skipped, unless `names` has it.

    Raises:
        MissingFileError: A file is not there.
        DataLossError: A file is damaged.
        UnsupportedCheckpointError: A tensor is of a dtype that is not read, the index is
            compressed, or numbers have their highest byte first.
        UnsafeCheckpointError: A file is a link.
    """
    path = _prefix_of(prefix)
    with raise_flaws(path), Folder(path) as folder:
        try:
            index = read_index(folder)
        except MissingFileError:
            found = v1_format.suffixes_of(folder)
            if not found:
                _refuse_foreign(path)
                raise
            return v1_format.read(folder, found, names, progress)
        wanted = {
            name: tensor
            for name, tensor in index.tensors.items()
            if names is None or name in names or name == object_graph.KEY
        }
        variants = {name for name, tensor in wanted.items() if tensor.dtype == VARIANT}
        if names is None:
            wanted = {name: wanted[name] for name in wanted if name not in variants}
        check_dtypes((name, tensor.dtype) for name, tensor in wanted.items())
        found = BundleReader(folder, index, wanted, progress).read_bundle()
    if found.graph is None:
        return replace(found, variants=tuple(variants))
    graph = object_graph.select_values(found.graph, lambda key: key not in variants)
    return replace(found, graph=graph, variants=tuple(variants))


def describe(prefix: Path) -> list[TensorInfo]:
    """Return the tensors of a checkpoint by name; files of data are neither read nor needed.

    Args:
        prefix: As in `read`.

    Raises:
        MissingFileError: There is no index.
        DataLossError: The index is damaged.
        UnsupportedCheckpointError: The index is compressed, or numbers have their highest byte
            first.
        UnsafeCheckpointError: The index is a link.
    """
    path = _prefix_of(prefix)
    with raise_flaws(path), Folder(path) as folder:
        try:
            found = read_index(folder).tensors
        except MissingFileError:
            suffixes = v1_format.suffixes_of(folder)
            if not suffixes:
                _refuse_foreign(path)
                raise
            return v1_format.describe(folder, suffixes)
    return [
        TensorInfo(name, name_of(each.dtype), each.shape, each.size) for name, each in found.items()
    ]


def is_bundle(prefix: Path) -> bool:
    """Return True if a prefix names a TensorFlow checkpoint, by the last bytes of its index
    alone.
    """
    try:
        with Folder(_prefix_of(prefix)) as folder:
            return v1_format.is_table_file(folder, ".index") or bool(v1_format.suffixes_of(folder))
    except (OSError, ValueError, CorruptFileError):
        return False


def _refuse_foreign(path: str) -> None:
    """Say of a file that is in the place of a checkpoint what it is."""
    if os.path.isfile(path):
        with atomic_write.open_for_reading(path) as file:
            raise format_detection.refusal_error(path, file, "checkpoint of TensorFlow") from None


def _prefix_of(path: Path) -> str:
    """A prefix, also if it is given as a file of its checkpoint."""
    given = os.fspath(path)
    is_prefix = os.path.lexists(f"{given}.index")
    return given if is_prefix else _FILE.sub("", given)

"""Reading bundles: the tensors of a checkpoint, each with its checksum, or none at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from dataclasses import dataclass
from math import prod

from thalweg.errors import UnsupportedCheckpointError
from thalweg.storage.bundle import object_graph, slices, strings
from thalweg.storage.bundle.dtypes import NAMES, STRING, name_of
from thalweg.storage.bundle.flaw import Flaw, quoted, told, unequal, within
from thalweg.storage.bundle.folder import File, Folder
from thalweg.storage.bundle.index import Described, Index, Part, read_index
from thalweg.storage.bundle.object_graph import ObjectGraph
from thalweg.storage.bundle.table import FOOTER, is_table
from thalweg.storage.checksum import crc32c, unmasked
from thalweg.storage.stored import ITEM_BYTES, Stored

Path = str | os.PathLike[str]
Progress = Callable[[int, int], None]

_LISTED = 10  # names that an error lists


@dataclass(frozen=True, eq=False)
class Bundle:
    """What a checkpoint of TensorFlow holds.

    Attributes:
        tensors: Tensors by name. Slices are put together.
        strings: Tensors of strings, row by row, without their shapes.
        graph: The objects of an object checkpoint; None if it is one of `tf.train.Saver`.
    """

    tensors: dict[str, Stored]
    strings: dict[str, list[bytes]]
    graph: ObjectGraph | None


@dataclass(frozen=True)
class EntryDescription:
    """A tensor as the index describes it.

    Attributes:
        name: Its name.
        dtype: Its dtype: "F32", or TensorFlow's own name of what is read as no tensor: "string".
        shape: Its shape.
        bytes: How many bytes it has in the files of data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


def read(
    prefix: Path, names: Container[str] | None = None, progress: Progress | None = None
) -> Bundle:
    """Read a checkpoint of `tf.train.Saver` or `tf.train.Checkpoint`, all of it or nothing.

    Memory is what the tensors take; of a tensor in slices one more slice, and a byte per element.

    Args:
        prefix: What TensorFlow calls its path: "run7/model.ckpt-5".
        names: The tensors that are read; all by default. The object graph is read in any case.
        progress: Called now and then with the bytes that are read and those there are.

    Returns:
        The tensors, whose memory nobody else has.

    Raises:
        MissingFileError: A file is not there.
        DataLossError: A file is damaged.
        UnsupportedCheckpointError: A tensor is of a dtype that is not read, the index is
            compressed, or numbers have their highest byte first.
        UnsafeCheckpointError: A file is a link.
    """
    path = os.fspath(prefix)
    with told(path), Folder(path) as folder:
        index = read_index(folder)
        wanted = {
            name: tensor
            for name, tensor in index.tensors.items()
            if names is None or name in names or name == object_graph.KEY
        }
        _check_dtypes(wanted)
        return _Reader(folder, index, wanted, progress).bundle()


def describe(prefix: Path) -> list[EntryDescription]:
    """The tensors of a checkpoint by name; files of data are neither read nor needed.

    Args:
        prefix: As in `read`.

    Raises:
        MissingFileError: There is no index.
        DataLossError: The index is damaged.
        UnsupportedCheckpointError: The index is compressed, or numbers have their highest byte
            first.
        UnsafeCheckpointError: The index is a link.
    """
    path = os.fspath(prefix)
    with told(path), Folder(path) as folder:
        found = read_index(folder).tensors
    return [
        EntryDescription(name, name_of(each.dtype), each.shape, each.size)
        for name, each in found.items()
    ]


def is_bundle(prefix: Path) -> bool:
    """Whether there is an index of this name that is a table."""
    try:
        with Folder(os.fspath(prefix)) as folder:
            file = folder.opened(".index")
            try:
                return file.size >= FOOTER and is_table(file.read(file.size - FOOTER, FOOTER))
            finally:
                file.close()
    except (Flaw, OSError, ValueError):
        return False


def _check_dtypes(wanted: dict[str, Described]) -> None:
    """See that all tensors are of dtypes that are read."""
    others = [
        f"{quoted(name)} ({name_of(each.dtype)})"
        for name, each in wanted.items()
        if each.dtype not in NAMES and each.dtype != STRING
    ]
    if others:
        more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
        raise Flaw(
            f"{', '.join(others[:_LISTED])}{more}: tensors of such dtypes are not read;"
            " give the names of those that you want",
            UnsupportedCheckpointError,
        )


class _Reader:
    """Reads some tensors of a bundle.

    Args:
        folder: Where the files are.
        index: What the index says.
        wanted: The tensors.
        progress: Is told how far it is.
    """

    def __init__(
        self,
        folder: Folder,
        index: Index,
        wanted: dict[str, Described],
        progress: Progress | None,
    ) -> None:
        self._folder = folder
        self._index = index
        self._wanted = wanted
        self._progress = progress
        self._done = 0
        self._total = sum(each.size for each in wanted.values())

    def bundle(self) -> Bundle:
        """All that is wanted."""
        tensors: dict[str, Stored] = {}
        texts: dict[str, list[bytes]] = {}
        for name in sorted(self._wanted, key=self._place):
            tensor = self._wanted[name]
            with within(quoted(name)):
                if tensor.dtype == STRING:
                    texts[name] = self._strings(tensor)
                else:
                    tensors[name] = self._tensor(tensor)
        graph = texts.pop(object_graph.KEY, None)
        ordered = {name: tensors[name] for name in self._wanted if name in tensors}
        return Bundle(ordered, texts, None if graph is None else _graph(graph))

    def _place(self, name: str) -> tuple[int, int]:
        """Where a tensor begins, so that files are read from their beginning to their end."""
        entries = [part.entry for part in self._wanted[name].parts]
        return min((entry.shard, entry.offset) for entry in entries)

    def _tensor(self, tensor: Described) -> Stored:
        import numpy as np

        kind = NAMES[tensor.dtype]
        element = np.dtype(f"V{ITEM_BYTES[kind]}")
        for part in tensor.parts:
            self._file(part)
        if tensor.is_whole:
            data = np.empty(tensor.size, np.uint8)
            self._fill(tensor.parts[0], data.data)
        else:
            slices.check_tiling([(part.begins, part.shape) for part in tensor.parts], tensor.shape)
            whole = np.empty(tensor.shape, element)
            for part in tensor.parts:
                own = np.empty(part.entry.size, np.uint8)
                self._fill(part, own.data)
                whole[slices.region(part.begins, part.shape)] = own.view(element).reshape(
                    part.shape
                )
            data = whole.reshape(-1).view(np.uint8)
        if kind == "BOOL" and data.size and data.max() > 1:
            raise Flaw(f"it is bool and has bytes up to {data.max()}")
        return Stored(kind, tensor.shape, data.data)

    def _fill(self, part: Part, buffer: memoryview) -> None:
        """Read a part of a tensor."""
        self._file(part).read_into(part.entry.offset, buffer)
        stored, calculated = unmasked(part.entry.checksum), crc32c(buffer)
        if stored != calculated:
            raise unequal(stored, calculated)
        self._advance(len(buffer))

    def _strings(self, tensor: Described) -> list[bytes]:
        part = tensor.parts[0]
        data = self._file(part).read(part.entry.offset, part.entry.size)
        found, calculated = strings.decoded(data, prod(tensor.shape))
        stored = unmasked(part.entry.checksum)
        if stored != calculated:
            raise unequal(stored, calculated)
        self._advance(len(data))
        return found

    def _file(self, part: Part) -> File:
        """The file of a part, if it is long enough to hold it."""
        entry = part.entry
        file = self._folder.shard(self._index.suffix(entry.shard))
        if entry.offset + entry.size > file.size:
            raise Flaw(
                f"it lies from {entry.offset} to {entry.offset + entry.size} in"
                f" {self._index.suffix(entry.shard)}, which has {file.size} bytes"
            )
        return file

    def _advance(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)


def _graph(values: list[bytes]) -> ObjectGraph:
    with within(quoted(object_graph.KEY)):
        if len(values) != 1:
            raise Flaw(f"it has {len(values)} strings")
        return object_graph.decoded(values[0])

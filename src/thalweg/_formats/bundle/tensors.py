"""The tensors of a bundle: bytes read from its files of data, each with its checksum."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from thalweg._formats.bundle import object_graph, slices, strings
from thalweg._formats.bundle.checkpoint_directory import File, Folder
from thalweg._formats.bundle.contents import Bundle, Progress
from thalweg._formats.bundle.dtypes import NAMES, STRING
from thalweg._formats.bundle.errors import CorruptFileError, checksum_flaw, locate_flaws, quote_name
from thalweg._formats.bundle.index import Index, IndexedTensor, TensorSlice
from thalweg._formats.bundle.object_graph import ObjectGraph
from thalweg._formats.checksum import crc32c, unmask_checksum
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor

if TYPE_CHECKING:
    import numpy as np


class BundleReader:
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
        wanted: dict[str, IndexedTensor],
        progress: Progress | None,
    ) -> None:
        self._folder = folder
        self._index = index
        self._wanted = wanted
        self._progress = progress
        self._done = 0
        self._total = sum(each.size for each in wanted.values())

    def read_bundle(self) -> Bundle:
        """Read the wanted tensors.

        Returns:
            The tensors, the strings, and the object graph without the variables of strings.
        """
        tensors: dict[str, StoredTensor] = {}
        texts: dict[str, list[bytes]] = {}
        for name in sorted(self._wanted, key=self._place_of):
            tensor = self._wanted[name]
            with locate_flaws(quote_name(name)):
                if tensor.dtype == STRING:
                    texts[name] = self._read_strings(tensor)
                else:
                    tensors[name] = self._read_tensor(tensor)
        graph = texts.pop(object_graph.KEY, None)
        ordered = {name: tensors[name] for name in self._wanted if name in tensors}
        if graph is None:
            return Bundle(ordered, texts, None)
        selected = object_graph.select_values(_decode_graph(graph), lambda key: key not in texts)
        return Bundle(ordered, texts, selected)

    def _place_of(self, name: str) -> tuple[int, int]:
        """Where a tensor begins, so that files are read from their beginning to their end."""
        entries = [part.entry for part in self._wanted[name].parts]
        return min((entry.shard, entry.offset) for entry in entries)

    def _read_tensor(self, tensor: IndexedTensor) -> StoredTensor:
        kind = NAMES[tensor.dtype]
        for part in tensor.parts:
            self._open_shard_of(part)
        if tensor.is_whole:
            data = self._read_part(tensor.parts[0])
        else:
            slices.check_tiling([(part.begins, part.shape) for part in tensor.parts], tensor.shape)
            parts = ((part.begins, part.shape, self._read_part(part)) for part in tensor.parts)
            data = slices.join_parts(parts, tensor.shape, ITEM_BYTES[kind])
        if kind == "BOOL" and data.size and data.max() > 1:
            raise CorruptFileError(f"it is bool and has bytes up to {data.max()}")
        return StoredTensor(kind, tensor.shape, data.data)

    def _read_part(self, part: TensorSlice) -> np.ndarray[Any, Any]:
        """The bytes of a part of a tensor, if they have its checksum."""
        import numpy as np

        data = np.empty(part.entry.size, np.uint8)
        self._open_shard_of(part).read_into(part.entry.offset, data.data)
        stored, calculated = unmask_checksum(part.entry.checksum), crc32c(data.data)
        if stored != calculated:
            raise checksum_flaw(stored, calculated)
        self._report_progress(part.entry.size)
        return data

    def _read_strings(self, tensor: IndexedTensor) -> list[bytes]:
        part = tensor.parts[0]
        data = self._open_shard_of(part).read(part.entry.offset, part.entry.size)
        found, calculated = strings.decode_strings(data, prod(tensor.shape))
        stored = unmask_checksum(part.entry.checksum)
        if stored != calculated:
            raise checksum_flaw(stored, calculated)
        self._report_progress(len(data))
        return found

    def _open_shard_of(self, part: TensorSlice) -> File:
        """The file of a part, if it is long enough to hold it."""
        entry = part.entry
        file = self._folder.open_shard(self._index.suffix(entry.shard))
        if entry.offset + entry.size > file.size:
            raise CorruptFileError(
                f"it lies from {entry.offset} to {entry.offset + entry.size} in"
                f" {self._index.suffix(entry.shard)}, which has {file.size} bytes: that is cut off,"
                " or not of this index"
            )
        return file

    def _report_progress(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)


def _decode_graph(values: list[bytes]) -> ObjectGraph:
    with locate_flaws(quote_name(object_graph.KEY)):
        if len(values) != 1:
            raise CorruptFileError(f"it has {len(values)} strings")
        return object_graph.decode_graph(values[0])

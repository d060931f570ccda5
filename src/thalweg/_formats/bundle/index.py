"""The index of a bundle: each tensor with the places of its bytes, checked against each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from thalweg._formats.bundle import messages, slices
from thalweg._formats.bundle.checkpoint_directory import Folder
from thalweg._formats.bundle.dtypes import NAMES, STRING, name_of
from thalweg._formats.bundle.errors import CorruptFileError, locate_flaws, quote_name
from thalweg._formats.bundle.messages import BundleEntry, BundleHeader
from thalweg._formats.bundle.proto import decode_text
from thalweg._formats.bundle.table import iterate_entries
from thalweg._formats.stored_tensor import ITEM_BYTES
from thalweg.errors import UnsupportedCheckpointError

LIMIT = 1 << 26  # bytes of an index: a million tensors
SHARDS = 10_000
_VERSION = 1  # of readers
LARGEST = 1 << 63


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """A part of a tensor that lies in one piece.

    Attributes:
        begins: Where it begins along each axis.
        shape: Its shape.
        entry: Its place in a file.
    """

    begins: tuple[int, ...]
    shape: tuple[int, ...]
    entry: BundleEntry


@dataclass(frozen=True, slots=True)
class IndexedTensor:
    """A tensor as the index describes it.

    Attributes:
        dtype: The number of its dtype.
        shape: Its shape.
        parts: The places of its bytes, one if it is whole.
    """

    dtype: int
    shape: tuple[int, ...]
    parts: tuple[TensorSlice, ...]

    @property
    def size(self) -> int:
        """Number of bytes of the tensor in the files."""
        return sum(part.entry.size for part in self.parts)

    @property
    def is_whole(self) -> bool:
        """True if the tensor is stored in one piece."""
        return len(self.parts) == 1 and self.parts[0].shape == self.shape


@dataclass(frozen=True, slots=True)
class Index:
    """Contents of an index.

    Attributes:
        shards: The number of data files.
        tensors: Each tensor by its name.
    """

    shards: int
    tensors: dict[str, IndexedTensor]

    def suffix(self, shard: int) -> str:
        """Return the suffix of the name of a data file."""
        return f".data-{shard:05d}-of-{self.shards:05d}"


def read_index(folder: Folder) -> Index:
    """Read the index of a bundle, and no data.

    Raises:
        CorruptFileError: It is damaged, says what cannot be, or is of a kind that is not read.
    """
    file = folder.open_file(".index")
    try:
        if file.size > LIMIT:
            raise CorruptFileError(
                f"the index has {file.size} bytes, no more than {LIMIT} are read"
            )
        with locate_flaws("index"):
            found = iterate_entries(file.read, file.size)
            head = _parse_header(next(found, None))
            return Index(head.shards, _describe_entries(found, head))
    finally:
        file.close()


def _parse_header(first: tuple[bytes, bytes] | None) -> BundleHeader:
    if first is None or first[0]:
        raise CorruptFileError("it has no header")
    with locate_flaws("header"):
        head = messages.parse_header(first[1])
        if head.endianness == 1:
            raise CorruptFileError(
                "numbers have their highest byte first, which is not read; restore and save the"
                " checkpoint with TensorFlow on a machine that has the lowest first",
                UnsupportedCheckpointError,
            )
        if head.endianness:
            raise CorruptFileError(f"an order of bytes numbered {head.endianness}")
        if head.oldest > _VERSION or _VERSION in head.refused:
            raise CorruptFileError(
                f"it asks for a reader of version {head.oldest}, this is one of version {_VERSION}",
                UnsupportedCheckpointError,
            )
        if head.shards < 1:
            raise CorruptFileError(f"it names {head.shards} files of data")
        if head.shards > SHARDS:
            raise CorruptFileError(
                f"it names {head.shards} files of data, no more than {SHARDS} are read",
                UnsupportedCheckpointError,
            )
    return head


def _describe_entries(
    found: Iterator[tuple[bytes, bytes]], head: BundleHeader
) -> dict[str, IndexedTensor]:
    known: dict[str, BundleEntry] = {}
    kept: dict[bytes, BundleEntry] = {}  # entries of slices, by their keys
    for key, value in found:
        if key.startswith(b"\0"):
            with locate_flaws(f"slice {quote_name(key)}"):
                kept[key] = messages.parse_entry(value)
            continue
        with locate_flaws("names"):
            name = decode_text(key)
        with locate_flaws(quote_name(name)):
            known[name] = messages.parse_entry(value)
    made: dict[str, IndexedTensor] = {}
    for name, entry in known.items():
        with locate_flaws(quote_name(name)):
            _check_shape(entry)
            parts = tuple(_parts_of(name, entry, kept))
            for part in parts:
                _check(part.entry, head.shards)
            made[name] = IndexedTensor(entry.dtype, entry.shape, parts)
            if entry.slices:
                _check_slices(made[name])
    if kept:
        raise CorruptFileError(f"the slice {quote_name(next(iter(kept)))} belongs to no tensor")
    _check_apart(made)
    return made


def _parts_of(
    name: str, entry: BundleEntry, kept: dict[bytes, BundleEntry]
) -> Iterator[TensorSlice]:
    """Where a tensor's bytes are; entries of its slices are taken from those that are kept."""
    if not entry.slices:
        yield TensorSlice((0,) * len(entry.shape), entry.shape, entry)
    for extents in entry.slices:
        begins, shape = slices.bounding_box(extents, entry.shape)
        found = kept.pop(slices.key_of(name, extents), None)
        if found is None:
            raise CorruptFileError(
                f"the slice {slices.format_extents(extents)} has no entry, or comes twice"
            )
        if found.slices or (found.dtype, found.shape) != (entry.dtype, shape):
            raise CorruptFileError(
                f"the slice {slices.format_extents(extents)} has dtype {name_of(found.dtype)} and"
                f" shape {found.shape}, not {name_of(entry.dtype)} and {shape}"
            )
        yield TensorSlice(begins, shape, found)


def _check_shape(entry: BundleEntry) -> None:
    if not entry.dtype:
        raise CorruptFileError("it has no dtype")
    if prod(length for length in entry.shape if length) * _item_bytes(entry) >= LARGEST:
        raise CorruptFileError(f"its shape is {entry.shape}, beyond all memory")


def _item_bytes(entry: BundleEntry) -> int:
    """Bytes of an element; 1 where that is not known."""
    return ITEM_BYTES[NAMES[entry.dtype]] if entry.dtype in NAMES else 1


def _check(entry: BundleEntry, shards: int) -> None:
    """Refuse an entry that cannot be true, whatever the files hold."""
    if not 0 <= entry.shard < shards:
        raise CorruptFileError(f"it lies in file {entry.shard} of {shards}")
    if entry.offset < 0 or entry.size < 0 or entry.offset + entry.size >= LARGEST:
        raise CorruptFileError(f"it has {entry.size} bytes from {entry.offset} on")
    count, width = prod(entry.shape), _item_bytes(entry)
    if entry.dtype in NAMES and entry.size != count * width:
        raise CorruptFileError(
            f"it has {entry.size} bytes, {name_of(entry.dtype)} of shape {entry.shape} has"
            f" {count * width}"
        )
    if entry.dtype == STRING and entry.size < count:
        raise CorruptFileError(f"it has {entry.size} bytes for {count} strings")


def _check_slices(tensor: IndexedTensor) -> None:
    if tensor.dtype not in NAMES:
        raise CorruptFileError(
            f"it is {name_of(tensor.dtype)} and kept in slices, which is not read; save it whole"
            " with TensorFlow",
            UnsupportedCheckpointError,
        )
    slices.check_count([part.shape for part in tensor.parts], tensor.shape)


def _check_apart(tensors: dict[str, IndexedTensor]) -> None:
    """Refuse tensors that share bytes, so that no file can promise more than it has."""
    places = sorted(
        (part.entry.shard, part.entry.offset, part.entry.size, name)
        for name, tensor in tensors.items()
        for part in tensor.parts
        if part.entry.size
    )
    for one, other in pairwise(places):
        if one[0] == other[0] and one[1] + one[2] > other[1]:
            raise CorruptFileError(
                f"{quote_name(other[3])}: it begins at {other[1]}, before {quote_name(one[3])} ends"
                f" at {one[1] + one[2]}"
            )

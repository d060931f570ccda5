"""Index of a TensorFlow checkpoint bundle: the location of each tensor's bytes, validated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from thalweg._formats.bundle import messages, slices
from thalweg._formats.bundle.checkpoint_directory import Folder
from thalweg._formats.bundle.contents import NAMES, STRING, name_of
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


# A slice of a tensor, stored contiguously: its first index along each axis, and its entry.
TensorSlice = tuple[tuple[int, ...], BundleEntry]


@dataclass(frozen=True, slots=True)
class IndexedTensor:
    """Dtype, shape and location of a tensor.

    Attributes:
        dtype: The number of the dtype.
        shape: The shape.
        pieces: The slices in which the tensor is stored; a single slice may be the whole tensor.
    """

    dtype: int
    shape: tuple[int, ...]
    pieces: tuple[TensorSlice, ...]

    @property
    def size(self) -> int:
        """Number of bytes of the tensor in the files."""
        return sum(entry.size for _, entry in self.pieces)


@dataclass(frozen=True, slots=True)
class Index:
    """Locations of all tensors of a bundle.

    Attributes:
        shards: The number of data files.
        tensors: {name: tensor}.
    """

    shards: int
    tensors: dict[str, IndexedTensor]

    def suffix(self, shard: int) -> str:
        """Return the suffix of the name of a data file."""
        return f".data-{shard:05d}-of-{self.shards:05d}"


def read_index(directory: Folder) -> Index:
    """Return the index of a bundle; data files are not read.

    Raise CorruptFileError if the index is damaged, inconsistent or not supported.
    """
    with closing(directory.open_file(".index")) as file:
        if file.size > LIMIT:
            raise CorruptFileError(
                f"the index has {file.size} bytes, no more than {LIMIT} are read"
            )
        with locate_flaws("index"):
            key_values = iterate_entries(file.read, file.size)
            header = _parse_header(next(key_values, None))
            return Index(header.shards, _describe_entries(key_values, header))


def _parse_header(first_entry: tuple[bytes, bytes] | None) -> BundleHeader:
    """Return the header of a bundle; raise CorruptFileError if it is missing or not supported."""
    if first_entry is None or first_entry[0]:
        raise CorruptFileError("it has no header")
    with locate_flaws("header"):
        header = messages.parse_header(first_entry[1])
        if header.endianness == 1:
            raise CorruptFileError(
                "numbers have their highest byte first, which is not read; restore and save the"
                " checkpoint with TensorFlow on a machine that has the lowest first",
                UnsupportedCheckpointError,
            )
        if header.endianness:
            raise CorruptFileError(f"an order of bytes numbered {header.endianness}")
        if header.oldest > _VERSION or _VERSION in header.rejected:
            raise CorruptFileError(
                f"it asks for a reader of version {header.oldest}, this is one of version"
                f" {_VERSION}",
                UnsupportedCheckpointError,
            )
        if header.shards < 1:
            raise CorruptFileError(f"it names {header.shards} files of data")
        if header.shards > SHARDS:
            raise CorruptFileError(
                f"it names {header.shards} files of data, no more than {SHARDS} are read",
                UnsupportedCheckpointError,
            )
    return header


def _describe_entries(
    key_values: Iterator[tuple[bytes, bytes]], bundle_header: BundleHeader
) -> dict[str, IndexedTensor]:
    """Return {name: tensor} of an index; raise CorruptFileError for bad entries or overlaps."""
    entries_by_name: dict[str, BundleEntry] = {}
    slice_entries: dict[bytes, BundleEntry] = {}
    for key, serialized in key_values:
        if key.startswith(b"\0"):
            with locate_flaws(f"slice {quote_name(key)}"):
                slice_entries[key] = messages.parse_entry(serialized)
            continue
        with locate_flaws("names"):
            name = decode_text(key)
        with locate_flaws(quote_name(name)):
            entries_by_name[name] = messages.parse_entry(serialized)
    tensors: dict[str, IndexedTensor] = {}
    for name, entry in entries_by_name.items():
        with locate_flaws(quote_name(name)):
            _check_shape(entry)
            pieces = tuple(_find_slices(name, entry, slice_entries))
            for _, piece in pieces:
                _check(piece, bundle_header.shards)
            tensors[name] = IndexedTensor(entry.dtype, entry.shape, pieces)
            if entry.slices:
                _check_slices(tensors[name])
    if slice_entries:
        key = next(iter(slice_entries))
        raise CorruptFileError(f"the slice {quote_name(key)} belongs to no tensor")
    _check_overlap(tensors)
    return tensors


def _find_slices(
    name: str, entry: BundleEntry, slice_entries: dict[bytes, BundleEntry]
) -> Iterator[TensorSlice]:
    """Yield (origin, entry) of each slice of a tensor; remove the entries from `slice_entries`."""
    if not entry.slices:
        yield (0,) * len(entry.shape), entry
    for extents in entry.slices:
        origin, shape = slices.bounding_box(extents, entry.shape)
        slice_entry = slice_entries.pop(slices.key_of(name, extents), None)
        if slice_entry is None:
            raise CorruptFileError(
                f"the slice {slices.format_extents(extents)} has no entry, or comes twice"
            )
        if slice_entry.slices or (slice_entry.dtype, slice_entry.shape) != (entry.dtype, shape):
            raise CorruptFileError(
                f"the slice {slices.format_extents(extents)} has dtype {name_of(slice_entry.dtype)}"
                f" and shape {slice_entry.shape}, not {name_of(entry.dtype)} and {shape}"
            )
        yield origin, slice_entry


def _check_shape(entry: BundleEntry) -> None:
    """Raise CorruptFileError for an entry without a dtype, or with an impossibly large shape."""
    if not entry.dtype:
        raise CorruptFileError("it has no dtype")
    # NumPy rejects a shape with large lengths even if another length is 0.
    if prod(length for length in entry.shape if length) * _item_bytes(entry) >= LARGEST:
        raise CorruptFileError(f"its shape is {entry.shape}, beyond all memory")


def _item_bytes(entry: BundleEntry) -> int:
    """Return the bytes of an element; 1 if the dtype is not supported."""
    return ITEM_BYTES[NAMES[entry.dtype]] if entry.dtype in NAMES else 1


def _check(entry: BundleEntry, shards: int) -> None:
    """Raise CorruptFileError for an impossible size or location; `shards` counts the data files."""
    if not 0 <= entry.shard < shards:
        raise CorruptFileError(f"it lies in file {entry.shard} of {shards}")
    if entry.offset < 0 or entry.size < 0 or entry.offset + entry.size >= LARGEST:
        raise CorruptFileError(f"it has {entry.size} bytes from {entry.offset} on")
    count, width = prod(entry.shape), _item_bytes(entry)
    if entry.dtype in NAMES and entry.size != count * width:
        raise CorruptFileError(
            f"it has {entry.size} bytes, {name_of(entry.dtype)} of shape"
            f" {entry.shape} has {count * width}"
        )
    if entry.dtype == STRING and entry.size < count:
        raise CorruptFileError(f"it has {entry.size} bytes for {count} strings")


def _check_slices(tensor: IndexedTensor) -> None:
    """Raise CorruptFileError if slices have an unsupported dtype or do not fill the tensor."""
    if tensor.dtype not in NAMES:
        raise CorruptFileError(
            f"it is {name_of(tensor.dtype)} and kept in slices, which is not read; save it whole"
            " with TensorFlow",
            UnsupportedCheckpointError,
        )
    slices.check_count([entry.shape for _, entry in tensor.pieces], tensor.shape)


def _check_overlap(indexed_tensors: dict[str, IndexedTensor]) -> None:
    """Raise CorruptFileError if two tensors or slices share bytes of a data file.

    Without shared bytes, the tensors need at most as much memory as the data files.
    """
    extents = sorted(
        (entry.shard, entry.offset, entry.size, name)
        for name, tensor in indexed_tensors.items()
        for _, entry in tensor.pieces
        if entry.size
    )
    for first, second in pairwise(extents):
        if first[0] == second[0] and first[1] + first[2] > second[1]:
            raise CorruptFileError(
                f"{quote_name(second[3])}: it begins at {second[1]}, before {quote_name(first[3])}"
                f" ends at {first[1] + first[2]}"
            )

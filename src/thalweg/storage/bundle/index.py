"""The index of a bundle: each tensor with the places of its bytes, checked against each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from thalweg.errors import UnsupportedCheckpointError
from thalweg.storage.bundle import messages, slices
from thalweg.storage.bundle.dtypes import NAMES, STRING, name_of
from thalweg.storage.bundle.flaw import Flaw, locate_flaws, quote_name
from thalweg.storage.bundle.folder import Folder
from thalweg.storage.bundle.messages import Entry, Header
from thalweg.storage.bundle.proto import decode_text
from thalweg.storage.bundle.table import iterate_entries
from thalweg.storage.stored import ITEM_BYTES

LIMIT = 1 << 26  # bytes of an index: a million tensors
SHARDS = 10_000
_VERSION = 1  # of readers
LARGEST = 1 << 63


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a tensor that lies in one piece.

    Attributes:
        begins: Where it begins along each axis.
        shape: Its shape.
        entry: Its place in a file.
    """

    begins: tuple[int, ...]
    shape: tuple[int, ...]
    entry: Entry


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor as the index describes it.

    Attributes:
        dtype: The number of its dtype.
        shape: Its shape.
        parts: The places of its bytes, one if it is whole.
    """

    dtype: int
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

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
    tensors: dict[str, Described]

    def suffix(self, shard: int) -> str:
        """Return the suffix of the name of a data file."""
        return f".data-{shard:05d}-of-{self.shards:05d}"


def read_index(folder: Folder) -> Index:
    """Read the index of a bundle, and no data.

    Raises:
        Flaw: It is damaged, says what cannot be, or is of a kind that is not read.
    """
    file = folder.open_file(".index")
    try:
        if file.size > LIMIT:
            raise Flaw(f"the index has {file.size} bytes, no more than {LIMIT} are read")
        with locate_flaws("index"):
            found = iterate_entries(file.read, file.size)
            head = _parse_header(next(found, None))
            return Index(head.shards, _describe_entries(found, head))
    finally:
        file.close()


def _parse_header(first: tuple[bytes, bytes] | None) -> Header:
    if first is None or first[0]:
        raise Flaw("it has no header")
    with locate_flaws("header"):
        head = messages.parse_header(first[1])
        if head.endianness == 1:
            raise Flaw(
                "numbers have their highest byte first, which is not read; restore and save the"
                " checkpoint with TensorFlow on a machine that has the lowest first",
                UnsupportedCheckpointError,
            )
        if head.endianness:
            raise Flaw(f"an order of bytes numbered {head.endianness}")
        if head.oldest > _VERSION or _VERSION in head.refused:
            raise Flaw(
                f"it asks for a reader of version {head.oldest}, this is one of version {_VERSION}",
                UnsupportedCheckpointError,
            )
        if head.shards < 1:
            raise Flaw(f"it names {head.shards} files of data")
        if head.shards > SHARDS:
            raise Flaw(
                f"it names {head.shards} files of data, no more than {SHARDS} are read",
                UnsupportedCheckpointError,
            )
    return head


def _describe_entries(found: Iterator[tuple[bytes, bytes]], head: Header) -> dict[str, Described]:
    known: dict[str, Entry] = {}
    kept: dict[bytes, Entry] = {}  # entries of slices, by their keys
    for key, value in found:
        if key.startswith(b"\0"):
            with locate_flaws(f"slice {quote_name(key)}"):
                kept[key] = messages.parse_entry(value)
            continue
        with locate_flaws("names"):
            name = decode_text(key)
        with locate_flaws(quote_name(name)):
            known[name] = messages.parse_entry(value)
    made: dict[str, Described] = {}
    for name, entry in known.items():
        with locate_flaws(quote_name(name)):
            _check_shape(entry)
            parts = tuple(_parts_of(name, entry, kept))
            for part in parts:
                _check(part.entry, head.shards)
            made[name] = Described(entry.dtype, entry.shape, parts)
            if entry.slices:
                _check_slices(made[name])
    if kept:
        raise Flaw(f"the slice {quote_name(next(iter(kept)))} belongs to no tensor")
    _check_apart(made)
    return made


def _parts_of(name: str, entry: Entry, kept: dict[bytes, Entry]) -> Iterator[Part]:
    """Where a tensor's bytes are; entries of its slices are taken from those that are kept."""
    if not entry.slices:
        yield Part((0,) * len(entry.shape), entry.shape, entry)
    for extents in entry.slices:
        begins, shape = slices.bounding_box(extents, entry.shape)
        found = kept.pop(slices.key_of(name, extents), None)
        if found is None:
            raise Flaw(f"the slice {slices.format_extents(extents)} has no entry, or comes twice")
        if found.slices or (found.dtype, found.shape) != (entry.dtype, shape):
            raise Flaw(
                f"the slice {slices.format_extents(extents)} has dtype {name_of(found.dtype)} and"
                f" shape {found.shape}, not {name_of(entry.dtype)} and {shape}"
            )
        yield Part(begins, shape, found)


def _check_shape(entry: Entry) -> None:
    if not entry.dtype:
        raise Flaw("it has no dtype")
    if prod(length for length in entry.shape if length) * _item_bytes(entry) >= LARGEST:
        raise Flaw(f"its shape is {entry.shape}, beyond all memory")


def _item_bytes(entry: Entry) -> int:
    """Bytes of an element; 1 where that is not known."""
    return ITEM_BYTES[NAMES[entry.dtype]] if entry.dtype in NAMES else 1


def _check(entry: Entry, shards: int) -> None:
    """Refuse an entry that cannot be true, whatever the files hold."""
    if not 0 <= entry.shard < shards:
        raise Flaw(f"it lies in file {entry.shard} of {shards}")
    if entry.offset < 0 or entry.size < 0 or entry.offset + entry.size >= LARGEST:
        raise Flaw(f"it has {entry.size} bytes from {entry.offset} on")
    count, width = prod(entry.shape), _item_bytes(entry)
    if entry.dtype in NAMES and entry.size != count * width:
        raise Flaw(
            f"it has {entry.size} bytes, {name_of(entry.dtype)} of shape {entry.shape} has"
            f" {count * width}"
        )
    if entry.dtype == STRING and entry.size < count:
        raise Flaw(f"it has {entry.size} bytes for {count} strings")


def _check_slices(tensor: Described) -> None:
    if tensor.dtype not in NAMES:
        raise Flaw(
            f"it is {name_of(tensor.dtype)} and kept in slices, which is not read; save it whole"
            " with TensorFlow",
            UnsupportedCheckpointError,
        )
    slices.check_count([part.shape for part in tensor.parts], tensor.shape)


def _check_apart(tensors: dict[str, Described]) -> None:
    """Refuse tensors that share bytes, so that no file can promise more than it has."""
    places = sorted(
        (part.entry.shard, part.entry.offset, part.entry.size, name)
        for name, tensor in tensors.items()
        for part in tensor.parts
        if part.entry.size
    )
    for one, other in pairwise(places):
        if one[0] == other[0] and one[1] + one[2] > other[1]:
            raise Flaw(
                f"{quote_name(other[3])}: it begins at {other[1]}, before {quote_name(one[3])} ends"
                f" at {one[1] + one[2]}"
            )

"""Messages in the table of a bundle: a header, and an entry for each tensor.

The messages are those of tensorflow/core/protobuf/tensor_bundle.proto, and of tensor_shape.proto,
tensor_slice.proto and versions.proto beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._formats.bundle.errors import CorruptFileError
from thalweg._formats.bundle.proto import (
    BYTES,
    FIXED32,
    VARINT,
    ProtoMessage,
    bytes_field,
    encode_varint,
    fixed32_field,
    iterate_fields,
    number_field,
    packed_numbers,
)

# For each axis where a slice begins and how long it is; a length of None is all of the axis.
Slice = tuple[tuple[int, int | None], ...]

RANK = 254  # axes that a tensor of TensorFlow may have


@dataclass(frozen=True, slots=True)
class BundleHeader:
    """Description of the whole bundle.

    Attributes:
        shards: The number of data files.
        endianness: 0 for the lowest byte first, 1 for the highest.
        oldest: The oldest version of readers that may read it.
        refused: Versions of readers that must not.
    """

    shards: int
    endianness: int = 0
    oldest: int = 0
    refused: tuple[int, ...] = ()

    def encode_message(self) -> bytes:
        """Return the message."""
        versions = number_field(1, 1) + number_field(2, self.oldest)
        return (
            number_field(1, self.shards)
            + number_field(2, self.endianness)
            + bytes_field(3, versions)
        )


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """Description of a tensor.

    Attributes:
        dtype: The number of its dtype.
        shape: Its shape.
        shard: The number of its file.
        offset: Where it begins in the file.
        size: The number of its bytes.
        checksum: Their CRC32C, masked.
        slices: The slices that it is stored in, each with its own entry; none if it is whole.
    """

    dtype: int
    shape: tuple[int, ...]
    shard: int = 0
    offset: int = 0
    size: int = 0
    checksum: int = 0
    slices: tuple[Slice, ...] = ()

    def encode_message(self) -> bytes:
        """Return the message."""
        place = (
            number_field(3, self.shard) + number_field(4, self.offset) + number_field(5, self.size)
        )
        end = fixed32_field(6, self.checksum) + b"".join(
            bytes_field(7, encoded_slice(s)) for s in self.slices
        )
        return number_field(1, self.dtype) + bytes_field(2, encoded_shape(self.shape)) + place + end


def parse_header(data: bytes) -> BundleHeader:
    """Return the header of a bundle.

    Raises:
        CorruptFileError: The bytes are none.
    """
    found = ProtoMessage(data, {1: VARINT, 2: VARINT, 3: BYTES})
    versions = found.data(3)
    known = ProtoMessage(versions, {1: VARINT, 2: VARINT})
    return BundleHeader(
        found.signed(1), found.signed(2), known.signed(2), _repeated_numbers(versions, 3)
    )


def parse_entry(data: bytes) -> BundleEntry:
    """Return the entry of a tensor.

    Raises:
        CorruptFileError: The bytes are none.
    """
    kinds = {1: VARINT, 2: BYTES, 3: VARINT, 4: VARINT, 5: VARINT, 6: FIXED32, 7: BYTES}
    found = ProtoMessage(data, kinds)
    slices = tuple(slice_of(each) for each in found.every(7))
    place = found.signed(3), found.signed(4), found.signed(5), found.number(6)
    return BundleEntry(found.number(1), parse_shape(found.data(2)), *place, slices)


def parse_shape(data: bytes) -> tuple[int, ...]:
    """Return the shape in a TensorShape.

    Raises:
        CorruptFileError: It is unknown, has a negative length, or too many axes.
    """
    found = ProtoMessage(data, {2: BYTES, 3: VARINT})
    if found.number(3):
        raise CorruptFileError("its shape is unknown")
    lengths = tuple(ProtoMessage(each, {1: VARINT}).signed(1) for each in found.every(2))
    if len(lengths) > RANK:
        raise CorruptFileError(
            f"it has {len(lengths)} axes, TensorFlow's tensors have {RANK} at most"
        )
    if any(length < 0 for length in lengths):
        raise CorruptFileError(f"its shape is {lengths}")
    return lengths


def encoded_shape(lengths: tuple[int, ...]) -> bytes:
    """Return a TensorShape."""
    return b"".join(bytes_field(2, number_field(1, length)) for length in lengths)


def slice_of(data: bytes) -> Slice:
    """Return the extents in a TensorSlice.

    Raises:
        CorruptFileError: It is none.
    """
    made: list[tuple[int, int | None]] = []
    for each in ProtoMessage(data, {1: BYTES}).every(1):
        extent = ProtoMessage(each, {1: VARINT, 2: VARINT})
        made.append((extent.signed(1), extent.signed(2) if extent.has(2) else None))
    return tuple(made)


def encoded_slice(extents: Slice) -> bytes:
    """Return a TensorSlice."""
    made = b""
    for begin, length in extents:
        # A length of 0 is no default here: it is told apart from none at all.
        given = b"" if length is None else b"\x10" + encode_varint(length)
        made += bytes_field(1, number_field(1, begin) + given)
    return made


def _repeated_numbers(data: bytes, field: int) -> tuple[int, ...]:
    """The numbers of a field that may come often, packed into one or not."""
    made: list[int] = []
    for found, kind, value in iterate_fields(data):
        if found != field:
            continue
        if kind == VARINT and isinstance(value, int):
            made.append(value)
        elif kind == BYTES and isinstance(value, bytes):
            made += packed_numbers(value)
        else:
            raise CorruptFileError(f"field {field} is of kind {kind}")
    return tuple(made)

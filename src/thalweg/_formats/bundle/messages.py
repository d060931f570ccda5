"""Protobuf messages in the index of a TensorFlow checkpoint: a header, and an entry per tensor.

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
        endianness: 0 for little-endian, 1 for big-endian.
        oldest: The oldest version of readers that may read the bundle.
        rejected: Versions of readers that must not read the bundle.
    """

    shards: int
    endianness: int = 0
    oldest: int = 0
    rejected: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """Description of a tensor.

    Attributes:
        dtype: The number of the dtype.
        shape: The shape.
        shard: The number of the data file.
        offset: The offset in the file.
        size: The number of bytes.
        checksum: The masked CRC32C of the bytes.
        slices: The slices of a tensor that is stored in slices; each slice has an entry. () if the
            tensor is stored in one piece.
    """

    dtype: int
    shape: tuple[int, ...]
    shard: int = 0
    offset: int = 0
    size: int = 0
    checksum: int = 0
    slices: tuple[Slice, ...] = ()

    def encode_message(self) -> bytes:
        """Return the entry, of a tensor in one piece, as a serialized BundleEntryProto."""
        kind = number_field(1, self.dtype) + bytes_field(2, encoded_shape(self.shape))
        location = number_field(3, self.shard) + number_field(4, self.offset)
        return kind + location + number_field(5, self.size) + fixed32_field(6, self.checksum)


def parse_header(serialized: bytes) -> BundleHeader:
    """Return the header in a BundleHeaderProto; raise CorruptFileError for other bytes."""
    message = ProtoMessage(serialized, {1: VARINT, 2: VARINT, 3: BYTES})
    versions = message.data(3)
    version_message = ProtoMessage(versions, {1: VARINT, 2: VARINT})
    return BundleHeader(
        message.signed(1),
        message.signed(2),
        version_message.signed(2),
        _repeated_numbers(versions, 3),
    )


def parse_entry(serialized: bytes) -> BundleEntry:
    """Return the entry in a BundleEntryProto; raise CorruptFileError for other bytes."""
    kinds = {1: VARINT, 2: BYTES, 3: VARINT, 4: VARINT, 5: VARINT, 6: FIXED32, 7: BYTES}
    message = ProtoMessage(serialized, kinds)
    slices = tuple(slice_of(element) for element in message.every(7))
    location = message.signed(3), message.signed(4), message.signed(5), message.number(6)
    return BundleEntry(message.number(1), parse_shape(message.data(2)), *location, slices)


def parse_shape(serialized: bytes) -> tuple[int, ...]:
    """Return the shape in a serialized TensorShape.

    Raise CorruptFileError if the shape is unknown, or has a negative length or too many axes.
    """
    message = ProtoMessage(serialized, {2: BYTES, 3: VARINT})
    if message.number(3):
        raise CorruptFileError("its shape is unknown")
    dimensions = [ProtoMessage(dimension, {1: VARINT}) for dimension in message.every(2)]
    lengths = tuple(dimension.signed(1) for dimension in dimensions)
    if len(lengths) > RANK:
        raise CorruptFileError(
            f"it has {len(lengths)} axes, TensorFlow's tensors have {RANK} at most"
        )
    if any(length < 0 for length in lengths):
        raise CorruptFileError(f"its shape is {lengths}")
    return lengths


def encoded_shape(lengths: tuple[int, ...]) -> bytes:
    """Return a serialized TensorShape."""
    return b"".join(bytes_field(2, number_field(1, length)) for length in lengths)


def slice_of(serialized: bytes) -> Slice:
    """Return (start, length) of each dimension of a serialized TensorSlice; () for a scalar.

    The length of a full dimension is None. The numbers are not validated, and may be negative.
    Raise CorruptFileError if the bytes are not a TensorSliceProto.
    """
    extents: list[tuple[int, int | None]] = []
    for element in ProtoMessage(serialized, {1: BYTES}).every(1):
        extent = ProtoMessage(element, {1: VARINT, 2: VARINT})
        extents.append((extent.signed(1), extent.signed(2) if extent.has(2) else None))
    return tuple(extents)


def _repeated_numbers(serialized: bytes, field: int) -> tuple[int, ...]:
    """Return the numbers of a repeated field, packed or not."""
    values: list[int] = []
    for field_id, kind, content in iterate_fields(serialized):
        if field_id != field:
            continue
        if kind == VARINT and isinstance(content, int):
            values.append(content)
        elif kind == BYTES and isinstance(content, bytes):
            values += packed_numbers(content)
        else:
            raise CorruptFileError(f"field {field} is of kind {kind}")
    return tuple(values)

"""Bundles as no writer makes them: tables, entries and files with one thing wrong."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from thalweg._formats import bundle, stored_tensor
from thalweg._formats.bundle.messages import BundleEntry, BundleHeader, Slice
from thalweg._formats.bundle.proto import bytes_field, encode_varint, number_field
from thalweg._formats.bundle.table import encoded_table
from thalweg._formats.checksum import crc32c, mask_checksum

GOLDENS = Path(__file__).parents[1] / "goldens" / "checkpoints"
BUNDLES = GOLDENS / "bundles"
DATA = ".data-00000-of-00001"
MAGIC = 0xDB4775248B80FB57

Pair = tuple[int, bytes, bytes]  # how many bytes it shares, the rest of its key, its value


def block(pairs: Sequence[Pair], items: Sequence[int] = (0,), count: int | None = None) -> bytes:
    encoded = b"".join(
        encode_varint(shared) + encode_varint(len(tail)) + encode_varint(len(value)) + tail + value
        for shared, tail, value in pairs
    )
    return encoded + struct.pack(f"<{len(items)}I", *items) + struct.pack(
        "<I", len(items) if count is None else count
    )  # fmt: skip


def add_checksum(data: bytes, kind: int = 0) -> bytes:
    return data + bytes([kind]) + mask_checksum(crc32c(data + bytes([kind]))).to_bytes(4, "little")


def handle(offset: int, length: int) -> bytes:
    return encode_varint(offset) + encode_varint(length)


def footer(remarks: bytes, listing: bytes, magic: int = MAGIC) -> bytes:
    return (remarks + listing).ljust(40, b"\0") + magic.to_bytes(8, "little")


def table(*blocks: bytes, limits: Sequence[bytes] | None = None, kind: int = 0) -> bytes:
    """Return a table of blocks; the first blocks have the limits, which are high by default."""
    file, handles = b"", []
    names = limits or [b"\xff" * (number + 1) for number in range(len(blocks))]
    for data, limit in zip(blocks, names, strict=True):
        handles.append((0, limit, handle(len(file), len(data))))
        file += add_checksum(data, kind)
    return add_index(file, handles)


def add_index(file: bytes, pairs: Sequence[Pair], remarks: bytes | None = None) -> bytes:
    """Return a table: data blocks, followed by the block that lists them."""
    empty = block(()) if remarks is None else remarks
    first, file = len(file), file + add_checksum(empty)
    offsets, place = [], 0
    for shared, tail, value in pairs:
        offsets.append(place)
        place += len(
            encode_varint(shared)
            + encode_varint(len(tail))
            + encode_varint(len(value))
            + tail
            + value
        )
    listing = block(pairs, offsets or (0,))
    second = len(file)
    return (
        file
        + add_checksum(listing)
        + footer(handle(first, len(empty)), handle(second, len(listing)))
    )


def pairs(items: Mapping[bytes, bytes]) -> list[Pair]:
    return [(0, key, value) for key, value in items.items()]


def entry(
    data: bytes, offset: int = 0, dtype: int = 1, shape: Any = None, **changes: Any
) -> BundleEntry:
    fields = {
        "dtype": dtype,
        "shape": (len(data) // 4,) if shape is None else shape,
        "offset": offset,
        "size": len(data),
        "checksum": mask_checksum(crc32c(data)),
        **changes,
    }
    return BundleEntry(**fields)


def encoded_slice(extents: Slice) -> bytes:
    """Return a serialized TensorSlice."""
    encoded = b""
    for begin, length in extents:
        # A length of 0 differs from a missing one, so it is written.
        length_field = b"" if length is None else b"\x10" + encode_varint(length)
        encoded += bytes_field(1, number_field(1, begin) + length_field)
    return encoded


def encode(item: BundleHeader | BundleEntry | bytes) -> bytes:
    """Return a header or an entry as a serialized message; bytes are unchanged."""
    if isinstance(item, bytes):
        return item
    if isinstance(item, BundleHeader):
        versions = number_field(1, 1) + number_field(2, item.oldest)
        files = number_field(1, item.shards) + number_field(2, item.endianness)
        return files + bytes_field(3, versions)
    parts = [bytes_field(7, encoded_slice(extents)) for extents in item.slices]
    return item.encode_message() + b"".join(parts)


def write(
    prefix: Path,
    entries: Mapping[bytes, BundleEntry | bytes],
    data: bytes = b"",
    header: BundleHeader | bytes = BundleHeader(1),  # noqa: B008
) -> Path:
    """Return a bundle of these entries, whatever they say."""
    items = {b"": header, **entries}
    encoded_items = {key: encode(item) for key, item in items.items()}
    shards = header.shards if isinstance(header, BundleHeader) else 1
    Path(f"{prefix}.index").write_bytes(encoded_table(sorted(encoded_items.items())))
    Path(f"{prefix}.data-00000-of-{shards:05d}").write_bytes(data)
    return prefix


def small(prefix: Path) -> Path:
    tensors = {
        "dec/bias": stored_tensor.of_tensor(torch.arange(3.0)),
        "dec/kernel": stored_tensor.of_tensor(torch.arange(6).reshape(2, 3)),
    }
    bundle.write(prefix, tensors)
    return prefix


def bits(prefix: Path) -> dict[str, Any]:
    stored = bundle.read(prefix)
    tensors = {
        name: (tensor.dtype, tensor.shape, bytes(tensor.data))
        for name, tensor in stored.tensors.items()
    }
    return {"tensors": tensors, "strings": stored.strings, "graph": stored.graph}

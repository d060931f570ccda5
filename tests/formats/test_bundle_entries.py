"""Entries that do not match the data: errors name them, and nothing is read."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from bundle_files import DATA, bits, entry, small, write
from thalweg._formats import bundle
from thalweg._formats.bundle import proto
from thalweg._formats.bundle.messages import BundleEntry, BundleHeader
from thalweg._formats.bundle.slices import key_of
from thalweg._formats.bundle.tensors import encoded_strings
from thalweg._formats.checksum import crc32c, mask_checksum
from thalweg.errors import (
    DataLossError,
    ThalwegError,
    UnsafeCheckpointError,
    UnsupportedCheckpointError,
)

PAYLOAD = struct.pack("<8f", *range(8))  # what every file of data below holds
HALF = PAYLOAD[:16]


def at(begin: int, length: int, **fields: Any) -> BundleEntry:
    """Return the entry of a part of the payload."""
    return entry(PAYLOAD[begin : begin + length], **{"offset": begin, **fields})


GOOD = at(0, 16).encode_message()
TWO_TENSORS = {b"a": at(0, 16), b"w": at(16, 16)}

# The entry of "w" instead, the class of the error, its words behind the name.
ENTRIES: dict[str, tuple[BundleEntry | bytes, type[ThalwegError], str]] = {
    "no message": (b"\xff", DataLossError, "a number is cut off"),
    "field 0": (b"\0\0", DataLossError, "there is no field 0"),
    "group": (b"\x0b", DataLossError, "field 1 is of an unknown kind, 3"),
    "unknown kind": (b"\x7f\0", DataLossError, "field 15 is of an unknown kind, 7"),
    "field cut off": (GOOD + b"\x3a\x05", DataLossError, "field 7 is cut off"),
    "four bytes cut off": (GOOD[:-2], DataLossError, "field 6 is cut off"),
    "field of another kind": (GOOD + b"\x0d\1\0\0\0", DataLossError, "field 1 is of kind 5, not 0"),
    "field twice": (GOOD + b"\x08\1", DataLossError, "field 1 comes 2 times"),
    "number of eleven bytes": (
        b"\x08" + b"\xff" * 10 + b"\1",
        DataLossError,
        "a number has more than 64 bits",
    ),
    "no dtype": (at(16, 16, dtype=0), DataLossError, "it has no dtype"),
    "unknown dtype": (at(16, 16, dtype=99), UnsupportedCheckpointError, r"\(unknown dtype 99\)"),
    "negative dtype": (at(16, 16, dtype=-1), UnsupportedCheckpointError, r"unknown dtype \d{20}"),
    "reference": (at(16, 16, dtype=101), UnsupportedCheckpointError, r"\(unknown dtype 101\)"),
    "resource": (
        at(16, 16, dtype=20),
        UnsupportedCheckpointError,
        r"\(resource\): tensors of such",
    ),
    "qint8": (at(16, 16, dtype=11), UnsupportedCheckpointError, r"\(qint8\): tensors of such"),
    "negative length": (at(16, 16, shape=(-4,)), DataLossError, r"its shape is \(-4,\)"),
    "two negative lengths": (at(16, 16, shape=(-2, -2)), DataLossError, r"its shape is \(-2, -2\)"),
    "length of 2 ** 62": (at(16, 16, shape=(2**62,)), DataLossError, "beyond all memory"),
    "lengths that overflow": (
        at(16, 16, shape=(2**32, 2**32, 4)),
        DataLossError,
        "beyond all memory",
    ),
    "lengths that overflow to nothing": (
        at(16, 0, shape=(2**62, 2**62, 0)),
        DataLossError,
        "beyond all memory",
    ),
    "300 axes": (at(16, 4, shape=(1,) * 300), DataLossError, "it has 300 axes"),
    "unknown shape": (b"\x08\1\x12\2\x18\1" + GOOD[8:], DataLossError, "shape is unknown"),
    "size above dims": (
        at(16, 16, size=20),
        DataLossError,
        r"20 bytes, F32 of shape \(4,\) has 16",
    ),
    "size below dims": (
        at(16, 16, size=12),
        DataLossError,
        r"12 bytes, F32 of shape \(4,\) has 16",
    ),
    "size of another dtype": (
        at(16, 16, dtype=2),
        DataLossError,
        r"16 bytes, F64 of shape \(4,\) has 32",
    ),
    "negative size": (at(16, 16, size=-16), DataLossError, "it has -16 bytes from 16 on"),
    "negative offset": (at(16, 16, offset=-16), DataLossError, "it has 16 bytes from -16 on"),
    "offset past the file": (
        at(16, 16, offset=32),
        DataLossError,
        rf"it lies from 32 to 48 in \{DATA}, which has 32 bytes",
    ),
    "end past the file": (
        at(16, 16, offset=20),
        DataLossError,
        rf"it lies from 20 to 36 in \{DATA}, which has 32 bytes",
    ),
    "large and past the file": (
        at(16, 16, shape=(2**40,), size=2**42),
        DataLossError,
        "it lies from 16 to 4398046511120",
    ),
    "offset of 2 ** 63": (at(16, 16, offset=2**63 - 8), DataLossError, "16 bytes from 922337"),
    "negative file": (at(16, 16, shard=-1), DataLossError, "it lies in file -1 of 1"),
    "file beyond": (at(16, 16, shard=1), DataLossError, "it lies in file 1 of 1"),
    "file beyond 32 bits": (at(16, 16, shard=2**32), DataLossError, "in file 4294967296 of 1"),
    "over another": (at(12, 16), DataLossError, "it begins at 12, before 'a' ends at 16"),
    "same as another": (at(0, 16), DataLossError, "it begins at 0, before 'a' ends at 16"),
    "wrong checksum": (
        at(16, 16, checksum=mask_checksum(crc32c(HALF))),
        DataLossError,
        rf"Checksum does not match: stored {crc32c(HALF)} vs\. calculated on the restored bytes"
        rf" {crc32c(PAYLOAD[16:])}",
    ),
    "no checksum": (at(16, 16, checksum=0), DataLossError, "Checksum does not match: stored"),
    "bool of other bytes": (
        at(16, 16, dtype=10, shape=(16,)),
        DataLossError,
        "it is bool and has bytes up to",
    ),
    "more strings than bytes": (
        at(16, 16, dtype=7, shape=(10**6,)),
        DataLossError,
        "it has 16 bytes for 1000000 strings",
    ),
    "negative strings": (at(16, 16, dtype=7, shape=(-1,)), DataLossError, r"shape is \(-1,\)"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_invalid_entry_raises(name: str, tmp_path: Path) -> None:
    bad_entry, kind, words = ENTRIES[name]
    prefix = write(tmp_path / "ckpt", {**TWO_TENSORS, b"w": bad_entry}, PAYLOAD)
    with pytest.raises(kind, match=words) as error:
        bundle.read(prefix)
    assert type(error.value) is kind
    assert str(error.value).startswith(f"{prefix}: ")
    assert "'w'" in str(error.value)


def test_valid_entries_are_read(tmp_path: Path) -> None:
    tensors = bundle.read(write(tmp_path / "ckpt", TWO_TENSORS, PAYLOAD)).tensors
    assert [tensor.array().tolist() for tensor in tensors.values()] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    gap = {b"a": at(0, 8), b"w": at(24, 8)}
    assert len(bundle.read(write(tmp_path / "gap", gap, PAYLOAD)).tensors) == 2
    entries = {
        **TWO_TENSORS,
        b"w": at(16, 16).encode_message() + b"\xfa\x7f\2ab",
    }  # a field of later versions
    assert len(bundle.read(write(tmp_path / "more", entries, PAYLOAD)).tensors) == 2


# Slices: rows 0 to 2 and 2 to 4 of a tensor of shape (4, 2).

TOP = ((0, 2), (0, 2))
BOTTOM = ((2, 2), (0, 2))


def sliced(
    *slices, shape: tuple[int, ...] = (4, 2), used=None, **fields
) -> dict[bytes, BundleEntry]:
    """Return the entries of a tensor in slices that follow each other in the file."""
    entries = {b"w": BundleEntry(1, shape, slices=slices, **fields)}
    place = 0
    for extents in slices if used is None else used:
        part_shape = tuple(
            full if length is None else length
            for (_, length), full in zip(extents, shape, strict=False)
        )
        size = 4
        for length in part_shape:
            size *= max(length, 0)
        entries[key_of("w", extents)] = at(place, size, shape=part_shape)
        place += size
    return entries


SLICES: dict[str, tuple[dict[bytes, BundleEntry | bytes], type[ThalwegError], str]] = {
    "a hole": (sliced(TOP), DataLossError, r"its slices have 4 elements, its shape \(4, 2\) has 8"),
    "too many": (
        sliced(((0, 1), (0, 2)), ((1, 1), (0, 2)), ((0, 2), (0, 1)), shape=(2, 2)),
        DataLossError,
        "its slices have 6 elements",
    ),
    "upon each other": (
        sliced(TOP, ((1, 2), (0, 2))),
        DataLossError,
        "its slices lie upon each other",
    ),
    "twice": (sliced(TOP, TOP), DataLossError, "the slice 0,2:0,2 has no entry, or comes twice"),
    "no entry": (sliced(TOP, BOTTOM, used=[TOP]), DataLossError, "the slice 2,2:0,2 has no entry"),
    "no tensor": (
        sliced(TOP, BOTTOM, used=[TOP, BOTTOM, ((0, 1), (0, 2))]),
        DataLossError,
        "belongs to no tensor",
    ),
    "beyond the shape": (sliced(TOP, ((3, 2), (0, 2))), DataLossError, "does not lie in shape"),
    "before the shape": (sliced(TOP, ((-2, 2), (0, 2))), DataLossError, "does not lie in shape"),
    "negative length": (
        sliced(TOP, ((2, -2), (0, 2)), used=[TOP]),
        DataLossError,
        "does not lie in shape",
    ),
    "all from the middle": (
        sliced(TOP, ((2, None), (0, 2))),
        DataLossError,
        "does not lie in shape",
    ),
    "another rank": (sliced(TOP, ((2, 2),)), DataLossError, "a slice has 1 axes, the tensor 2"),
    "another dtype": (
        {**sliced(TOP, BOTTOM), key_of("w", TOP): at(0, 16, dtype=3, shape=(2, 2))},
        DataLossError,
        r"the slice 0,2:0,2 has dtype I32 and shape \(2, 2\), not F32 and \(2, 2\)",
    ),
    "another shape": (
        {**sliced(TOP, BOTTOM), key_of("w", TOP): at(0, 16, shape=(4,))},
        DataLossError,
        r"has dtype F32 and shape \(4,\), not F32 and \(2, 2\)",
    ),
    "slices of slices": (
        {**sliced(TOP, BOTTOM), key_of("w", TOP): at(0, 16, shape=(2, 2), slices=(TOP,))},
        DataLossError,
        "the slice 0,2:0,2 has dtype",
    ),
    "wrong checksum": (
        {**sliced(TOP, BOTTOM), key_of("w", TOP): at(0, 16, shape=(2, 2), checksum=1)},
        DataLossError,
        "'w': Checksum does not match",
    ),
    "upon each other in the file": (
        {**sliced(TOP, BOTTOM), key_of("w", BOTTOM): at(8, 16, shape=(2, 2))},
        DataLossError,
        "it begins at 8, before 'w' ends at 16",
    ),
    "past the file": (
        {**sliced(TOP, BOTTOM), key_of("w", BOTTOM): at(16, 16, shape=(2, 2), offset=2**40)},
        DataLossError,
        "'w': it lies from 1099511627776",
    ),
    "strings": (
        {
            b"w": BundleEntry(7, (4, 2), slices=(TOP, BOTTOM)),
            key_of("w", TOP): at(0, 16, dtype=7, shape=(2, 2)),
            key_of("w", BOTTOM): at(16, 16, dtype=7, shape=(2, 2)),
        },
        UnsupportedCheckpointError,
        "'w': it is string and kept in slices, which is not read; save it whole",
    ),
    "40 axes": (
        sliced(((0, 1),) * 40, shape=(1,) * 40),
        UnsupportedCheckpointError,
        "it has 40 axes and is kept in slices",
    ),
    "no slice": (
        {b"w": BundleEntry(1, (4, 2)).encode_message() + b"\x3a\x02\x0a\x7f"},
        DataLossError,
        "'w': field 1 is cut off",
    ),
}


@pytest.mark.parametrize("name", SLICES)
def test_invalid_slices_raise(name: str, tmp_path: Path) -> None:
    entries, kind, words = SLICES[name]
    prefix = write(tmp_path / "ckpt", entries, PAYLOAD)
    with pytest.raises(kind, match=words) as error:
        bundle.read(prefix)
    assert type(error.value) is kind


def test_valid_slices_are_read(tmp_path: Path) -> None:
    for slices in ((TOP, BOTTOM), (TOP, ((2, 2), (0, None))), (((0, None), (0, None)),)):
        prefix = write(tmp_path / "ckpt", sliced(*slices), PAYLOAD)
        tensor = bundle.read(prefix).tensors["w"]
        assert tensor.array().tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    first, second = ((0, None), (0, 1)), ((0, None), (1, 1))
    tensor = bundle.read(write(tmp_path / "ckpt", sliced(first, second), PAYLOAD)).tensors["w"]
    assert tensor.array().tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert tensor.tensor().is_contiguous()


HEADERS: dict[str, tuple[BundleHeader | bytes, type[ThalwegError], str]] = {
    "highest byte first": (
        BundleHeader(1, endianness=1),
        UnsupportedCheckpointError,
        "numbers have their highest byte first, which is not read; restore and save",
    ),
    "another order": (BundleHeader(1, endianness=2), DataLossError, "an order of bytes numbered 2"),
    "for later readers": (
        BundleHeader(1, oldest=2),
        UnsupportedCheckpointError,
        "it asks for a reader of version 2, this is one of version 1",
    ),
    "not for this reader": (
        b"\x08\1\x1a\4\x08\1\x18\1",
        UnsupportedCheckpointError,
        "it asks for a reader of version 0",
    ),
    "not for these readers": (
        b"\x08\1\x1a\6\x08\1\x1a\2\7\1",
        UnsupportedCheckpointError,
        "it asks for a reader of version 0",
    ),
    "versions of another kind": (
        b"\x08\1\x1a\5\x1d\0\0\0\0",
        DataLossError,
        "header: field 3 is of kind 5",
    ),
    "no files": (b"", DataLossError, "it names 0 files of data"),
    "negative files": (BundleHeader(-1), DataLossError, "it names -1 files of data"),
    "10,001 files": (
        BundleHeader(10_001),
        UnsupportedCheckpointError,
        "10001 files of data, no more",
    ),
    "10 ** 9 files": (
        BundleHeader(10**9),
        UnsupportedCheckpointError,
        "1000000000 files of data, no",
    ),
    "no message": (b"\x08", DataLossError, "header: a number is cut off"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_invalid_header_raises(name: str, tmp_path: Path) -> None:
    header, kind, words = HEADERS[name]
    prefix = write(tmp_path / "ckpt", TWO_TENSORS, PAYLOAD, header)
    for call in (bundle.read, bundle.describe):
        with pytest.raises(kind, match=words):
            call(prefix)


def test_tensor_names_are_only_dictionary_keys(tmp_path: Path) -> None:
    home = tmp_path / "inside"
    home.mkdir()
    names = ["../../x", "/etc/passwd", "CON", "..", ".", " ", "é", "a\nb", "x" * 1_000_000]
    tensors = {name: entry(b"", shape=(0,)) for name in names}
    contents = bundle.read(write(home / "ckpt", {k.encode(): v for k, v in tensors.items()}))
    assert contents.tensors.keys() == set(names)
    assert os.listdir(tmp_path) == ["inside"]
    assert sorted(os.listdir(home)) == [f"ckpt{DATA}", "ckpt.index"]
    with pytest.raises(DataLossError, match=r"names: b'a\\xff' is no UTF-8"):
        bundle.read(write(home / "ckpt", {b"a\xff": entry(b"", shape=(0,))}))
    with pytest.raises(DataLossError, match=r"the slice b'\\x00a' belongs to no tensor"):
        bundle.read(write(home / "ckpt", {b"\0a": entry(b"", shape=(0,))}))
    long = {b"x" * 1_000_000: entry(b"", shape=(1,), size=0)}
    with pytest.raises(DataLossError, match=r"x{200}'\.\.\. \(1000000 long\)") as error:
        bundle.read(write(home / "ckpt", long))
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("suffix", [".index", DATA])
def test_a_link_is_not_followed(suffix: str, tmp_path: Path) -> None:
    prefix = small(tmp_path / "ckpt")
    initial = bits(prefix)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Path(f"{prefix}{suffix}").rename(elsewhere / "file")
    Path(f"{prefix}{suffix}").symlink_to(elsewhere / "file")
    with pytest.raises(UnsafeCheckpointError, match=rf"ckpt{suffix} is a link, which may lead"):
        bundle.read(prefix)
    Path(f"{prefix}{suffix}").unlink()
    (elsewhere / "file").rename(f"{prefix}{suffix}")
    (tmp_path / "linked").symlink_to(tmp_path)  # a folder that the user names may be one
    assert bits(tmp_path / "linked" / "ckpt") == initial


@pytest.mark.parametrize("suffix", [".index", DATA])
def test_paths_without_a_file_raise(suffix: str, tmp_path: Path) -> None:
    prefix = small(tmp_path / "ckpt")
    Path(f"{prefix}{suffix}").unlink()
    os.mkfifo(f"{prefix}{suffix}")  # nobody writes to it
    with pytest.raises(DataLossError, match=rf"ckpt{suffix} is no regular file"):
        bundle.read(prefix)
    Path(f"{prefix}{suffix}").unlink()
    Path(f"{prefix}{suffix}").mkdir()
    with pytest.raises(DataLossError, match=rf"ckpt{suffix} is no regular file"):
        bundle.read(prefix)


# Strings.

TEXTS = [b"one", b"", b"x" * 300]
LENGTHS = b"\3\0\xac\2"


def strings(data: bytes, checksum: int, count: int = 3) -> dict[bytes, BundleEntry]:
    return {b"t": BundleEntry(7, (count,), 0, 0, len(data), mask_checksum(checksum))}


def test_invalid_strings_raise(tmp_path: Path) -> None:
    data, checksum = encoded_strings(TEXTS)
    assert data.startswith(LENGTHS)
    good = write(tmp_path / "ckpt", strings(data, checksum), data)
    assert bundle.read(good).strings == {"t": TEXTS}
    with pytest.raises(DataLossError, match=r"'t': Checksum does not match: stored"):
        bundle.read(write(tmp_path / "ckpt", strings(data, checksum ^ 1), data))
    for place, words in {
        0: "3 strings with 302 bytes do not fit into its",
        len(LENGTHS): "Checksum does not match",
        len(data) - 1: "Checksum does not match",
    }.items():
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(DataLossError, match=f"'t': .*{words}"):
            bundle.read(write(tmp_path / "ckpt", strings(data, checksum), bytes(damaged)))
    recut = b"\2\1" + data[2:]  # as many bytes, cut elsewhere
    with pytest.raises(DataLossError, match="Checksum does not match"):
        bundle.read(write(tmp_path / "ckpt", strings(recut, checksum), recut))
    for count in (2, 4):
        with pytest.raises(DataLossError, match=f"{count} strings with"):
            bundle.read(write(tmp_path / "ckpt", strings(data, checksum, count), data))
    huge = proto.encode_varint(2**64 - 1) + b"\0" * 12
    with pytest.raises(DataLossError, match="1 strings with 18446744073709551615 bytes do not fit"):
        bundle.read(write(tmp_path / "ckpt", strings(huge, 0, 1), huge))


def test_declared_sizes_allocate_no_memory(tmp_path: Path) -> None:
    large = ((0, None), (0, None))
    shape = (2**20, 2**20)
    cases: dict[str, dict[bytes, BundleEntry]] = {
        "size": {b"w": at(0, 16, shape=(2**40,), size=2**42)},
        "strings": {b"w": at(0, 16, dtype=7, shape=(2**40,), size=2**41)},
        "slices": {
            b"w": BundleEntry(1, shape, slices=(large,)),
            key_of("w", large): at(0, 16, shape=shape, size=2**42),
        },
    }
    small(tmp_path / "small")
    bundle.read(tmp_path / "small")
    for name, entries in cases.items():
        prefix = write(tmp_path / name, entries, PAYLOAD)
        tracemalloc.start()
        try:
            with pytest.raises(DataLossError, match="it lies from 0 to "):
                bundle.read(prefix)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 1 << 20, name

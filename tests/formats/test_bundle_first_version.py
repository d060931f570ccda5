"""Files of TensorFlow's first format with one thing wrong, and those in several files."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from bundle_files import BUNDLES, bits, encoded_slice
from thalweg._formats import bundle
from thalweg._formats.bundle.messages import Slice, encoded_shape
from thalweg._formats.bundle.proto import bytes_field, encode_varint, number_field, string_field
from thalweg._formats.bundle.slices import key_of
from thalweg._formats.bundle.table import FOOTER, encoded_table
from thalweg.errors import (
    DataLossError,
    MissingFileError,
    ThalwegError,
    UnsafeCheckpointError,
    UnsupportedCheckpointError,
)

SAMPLE = BUNDLES / "version_1" / "model.ckpt"
TOP: Slice = ((0, 1), (0, None))
BOTTOM: Slice = ((1, 1), (0, None))
BOX: Slice = ((0, None), (0, None))


def floats(*values: float) -> bytes:
    return bytes_field(5, struct.pack(f"<{len(values)}f", *values))


def described(
    slices: Sequence[Slice] = (BOX,), shape: tuple[int, ...] = (2, 2), dtype: int = 1
) -> bytes:
    """Return an encoded description of the tensor "w"."""
    body = string_field(1, "w") + bytes_field(2, encoded_shape(shape)) + number_field(3, dtype)
    return bytes_field(1, body + b"".join(bytes_field(4, encoded_slice(part)) for part in slices))


def value(extents: Slice, data: bytes) -> tuple[bytes, bytes]:
    """Return a slice of "w" with its key."""
    body = string_field(1, "w") + bytes_field(2, encoded_slice(extents)) + bytes_field(3, data)
    return key_of("w", extents), bytes_field(2, body)


def put(path: Path, description: bytes, *values: tuple[bytes, bytes]) -> Path:
    """Write a file with these values, in order."""
    path.write_bytes(encoded_table([(b"", bytes_field(1, description)), *sorted(values)]))
    return path


FOUR = floats(1, 2, 3, 4)
GOOD: dict[str, tuple[bytes, list[tuple[bytes, bytes]], object]] = {
    "one slice": (described(), [value(BOX, FOUR)], [[1, 2], [3, 4]]),
    "two slices": (
        described([TOP, BOTTOM]),
        [value(TOP, floats(1, 2)), value(BOTTOM, floats(3, 4))],
        [[1, 2], [3, 4]],
    ),
    "numbers one by one": (
        described(),
        [value(BOX, b"".join(b"\x2d" + struct.pack("<f", real) for real in range(4)))],
        [[0, 1], [2, 3]],
    ),
    "negative numbers": (
        described(dtype=6),
        [
            value(
                BOX,
                bytes_field(
                    7,
                    encode_varint(-128) + encode_varint(127) + encode_varint(-1) + encode_varint(0),
                ),
            )
        ],
        [[-128, 127], [-1, 0]],
    ),
    "numbers of 64 bits": (
        described(dtype=9),
        [value(BOX, bytes_field(10, encode_varint(-(2**63)) + encode_varint(2**63 - 1) + b"\0\1"))],
        [[-(2**63), 2**63 - 1], [0, 1]],
    ),
    "one number": (described(shape=(1, 1), dtype=10), [value(BOX, b"\x58\1")], [[True]]),
    "nothing": (described(shape=(0, 5)), [value(BOX, b"")], []),
}


@pytest.mark.parametrize("name", GOOD)
def test_first_version_bundle_is_read(name: str, tmp_path: Path) -> None:
    description, values, expected = GOOD[name]
    path = put(tmp_path / "ckpt", description, *values)
    assert bundle.is_bundle(path)
    contents = bundle.read(path)
    assert contents.tensors["w"].array().tolist() == expected
    assert [entry.name for entry in bundle.describe(path)] == ["w"]


WRONG: dict[str, tuple[bytes, list[tuple[bytes, bytes]], type[ThalwegError], str]] = {
    "fewer numbers": (described(), [value(BOX, floats(1))], DataLossError, "4 bytes are given"),
    "more numbers": (described(), [value(BOX, FOUR * 2)], DataLossError, "32 bytes are given"),
    "three bytes": (
        described(),
        [value(BOX, bytes_field(5, b"abc"))],
        DataLossError,
        "3 bytes are given, not 16",
    ),
    "another field": (
        described(),
        [value(BOX, bytes_field(6, bytes(16)))],
        DataLossError,
        "0 bytes are given",
    ),
    "another kind": (described(), [value(BOX, b"\x28\1")], DataLossError, "numbers are of kind 0"),
    "too large a number": (
        described(dtype=6),
        [value(BOX, bytes_field(7, b"\x80\1\0\0\0"))],
        DataLossError,
        "128 is beyond I8",
    ),
    "negative without a sign": (
        described(dtype=4),
        [value(BOX, bytes_field(7, encode_varint(-1)))],
        DataLossError,
        "18446744073709551615 is beyond U8",
    ),
    "no bool": (
        described(dtype=10),
        [value(BOX, bytes_field(11, b"\2"))],
        DataLossError,
        "2 is no bool",
    ),
    "half a number": (
        described(dtype=3),
        [value(BOX, bytes_field(7, b"\x80"))],
        DataLossError,
        "a number is cut off",
    ),
    "no slice": (described(), [], DataLossError, "'w': a slice of it is not there"),
    "one slice of two": (
        described([TOP, BOTTOM]),
        [value(TOP, floats(1, 2))],
        DataLossError,
        "a slice of it is not there",
    ),
    "no tensor": (
        described(),
        [value(BOX, FOUR), value(TOP, floats(1, 2))],
        DataLossError,
        "belongs to no tensor, or comes twice",
    ),
    "slices that are not told": (described([]), [], DataLossError, "it is F32 in 0 slices"),
    "a hole": (described([TOP]), [], DataLossError, "its slices have 2 elements"),
    "upon each other": (
        described([TOP, ((0, 1), (0, 2))]),
        [value(TOP, floats(1, 2)), value(((0, 1), (0, 2)), floats(1, 2))],
        DataLossError,
        "its slices lie upon each other",
    ),
    "twice": (described([TOP, TOP]), [], DataLossError, "the slice 0,1:- comes twice"),
    "told twice": (
        described() + described(shape=(4, 1)),
        [],
        DataLossError,
        r"it is of shape \(2, 2\) in one file and of \(4, 1\) in another",
    ),
    "beyond the shape": (described([((2, 1), (0, 2))]), [], DataLossError, "does not lie in shape"),
    "beyond all memory": (described(shape=(2**40, 2**40)), [], DataLossError, "beyond all memory"),
    "a large promise": (
        described(shape=(2**20, 2**20)),
        [value(BOX, FOUR)],
        DataLossError,
        "16 bytes are given, not 4398046511104",
    ),
    "unknown dtype": (
        described(dtype=77),
        [value(BOX, b"")],
        UnsupportedCheckpointError,
        r"'w' \(unknown dtype 77\)",
    ),
    "a later dtype": (
        described(dtype=25),
        [value(BOX, b"")],
        DataLossError,
        "it is F8_E4M3, which this format does not have",
    ),
    "strings in slices": (described([TOP, BOTTOM], dtype=7), [], DataLossError, "in 2 slices"),
    "fewer strings": (
        described(dtype=7),
        [value(BOX, bytes_field(8, b"a"))],
        DataLossError,
        "1 strings are given, not 4",
    ),
    "numbers for strings": (
        described(shape=(1, 1), dtype=7),
        [value(BOX, b"\x40\1")],
        DataLossError,
        "0 strings are given, not 1",
    ),
    "no message": (b"\x0a\x7f", [], DataLossError, "field 1 is cut off"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_damaged_files_raise(name: str, tmp_path: Path) -> None:
    description, values, kind, words = WRONG[name]
    path = put(tmp_path / "ckpt", description, *values)
    with pytest.raises(kind, match=words) as error:
        bundle.read(path)
    assert type(error.value) is kind
    assert str(error.value).startswith(f"{path}: ")


def test_first_version_strings_are_read(tmp_path: Path) -> None:
    path = put(
        tmp_path / "ckpt",
        described(shape=(1, 2), dtype=7),
        value(BOX, bytes_field(8, b"a") + bytes_field(8, b"")),
    )
    assert bundle.read(path).strings == {"w": [b"a", b""]}


def test_missing_description_raises(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    path.write_bytes(encoded_table([value(BOX, FOUR)]))
    with pytest.raises(DataLossError, match="it has no description of its tensors"):
        bundle.read(path)


def test_flipped_bytes_of_a_first_version_bundle_raise(tmp_path: Path) -> None:
    path = put(tmp_path / "ckpt", described(), value(BOX, FOUR))
    data, expected = path.read_bytes(), bits(path)
    harmless: set[int] = set()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            assert bits(path) == expected
            harmless.add(place)
        except (DataLossError, MissingFileError):
            continue
    assert harmless <= set(range(len(data) - FOOTER + 4, len(data) - 8))


def test_sharded_files_are_one_checkpoint(tmp_path: Path) -> None:
    for place, (extents, data) in enumerate(((TOP, floats(1, 2)), (BOTTOM, floats(3, 4)))):
        path = tmp_path / f"ckpt-{place:05d}-of-00002"
        put(path, described([extents]), value(extents, data))
    calls: list[tuple[int, int]] = []
    contents = bundle.read(tmp_path / "ckpt", progress=lambda *numbers: calls.append(numbers))
    assert contents.tensors["w"].array().tolist() == [[1, 2], [3, 4]]
    assert calls[-1][0] == calls[-1][1] == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert bundle.is_bundle(tmp_path / "ckpt")
    entries = bundle.describe(tmp_path / "ckpt")
    assert [(entry.dtype, entry.shape, entry.bytes) for entry in entries] == [("F32", (2, 2), 16)]
    second = tmp_path / "ckpt-00001-of-00002"
    second.rename(tmp_path / "real")
    with pytest.raises(MissingFileError, match="ckpt-00001-of-00002: No such file"):
        bundle.read(tmp_path / "ckpt")
    second.symlink_to("real")
    with pytest.raises(UnsafeCheckpointError, match="is a link"):
        bundle.read(tmp_path / "ckpt")


def test_subset_of_names_is_read() -> None:
    contents = bundle.read(SAMPLE, ["part"])
    assert contents.tensors.keys() == {"part"}
    assert contents.tensors["part"].shape == (5, 2)


def test_files_without_a_table_are_missing(tmp_path: Path) -> None:
    (tmp_path / "ckpt").write_text("text" * 20)
    (tmp_path / "folder").mkdir()
    for name in ("ckpt", "folder", "none"):
        assert not bundle.is_bundle(tmp_path / name)
        is_file = name == "ckpt"
        error = DataLossError if is_file else MissingFileError
        text = "ckpt: It is no checkpoint of TensorFlow" if is_file else rf"{name}\.index: No such"
        with pytest.raises(error, match=text):
            bundle.read(tmp_path / name)

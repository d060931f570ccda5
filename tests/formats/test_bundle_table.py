"""Tables with one thing wrong raise errors that name it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bundle_files import (
    DATA,
    MAGIC,
    add_checksum,
    add_index,
    bits,
    block,
    encode,
    entry,
    footer,
    handle,
    pairs,
    small,
    table,
)
from thalweg._formats import bundle
from thalweg._formats.bundle import checkpoint_directory
from thalweg._formats.bundle.errors import CorruptFileError
from thalweg._formats.bundle.messages import BundleHeader
from thalweg.errors import (
    DataLossError,
    MissingFileError,
    UnsafeCheckpointError,
    UnsupportedCheckpointError,
)

HEAD = encode(BundleHeader(1))
PAYLOAD = b"\0\0\x80\x3f" * 2
ENTRY = entry(PAYLOAD).encode_message()
PAIRS = pairs({b"": HEAD, b"a": ENTRY, b"b": entry(b"", shape=(0,)).encode_message()})
GOOD = block(PAIRS)
EMPTY = add_checksum(block(()))


def damaged(data: bytes) -> bytes:
    """Return a table whose only block has a wrong checksum."""
    raw = bytearray(table(data))
    raw[3] ^= 1
    return bytes(raw)


def beyond(offset: int, length: int) -> bytes:
    """Return a table whose footer points elsewhere."""
    return add_index(add_checksum(GOOD), [(0, b"\xff", handle(offset, length))])


ELEVEN = b"\x80" * 10 + b"\1"  # a number of eleven bytes
SIXTY_FIVE = b"\xff" * 9 + b"\2"  # one of ten bytes that is 2 ** 64 and more
START = len(block(PAIRS)) - 8  # where the whole keys are listed

DAMAGED_TABLES: dict[str, tuple[bytes, str]] = {
    "no bytes": (b"", "does not end as a table does"),
    "47 bytes": (b"\0" * 47, "does not end as a table does"),
    "no magic number": (table(GOOD)[:-1] + b"\0", "does not end as a table does"),
    "more behind": (table(GOOD) + b"\0", "does not end as a table does"),
    "zeros": (b"\0" * 4096, "does not end as a table does"),
    "footer alone": (footer(handle(0, 0), handle(0, 0)), "it goes from 0 to 5, the file to 0"),
    "footer of eleven bytes": (
        add_checksum(GOOD) + ELEVEN.ljust(40, b"\0") + MAGIC.to_bytes(8, "little"),
        "end of the file: a number has more than 64 bits",
    ),
    "footer that does not end": (
        add_checksum(GOOD) + b"\1" * 3 + b"\x80" * 37 + MAGIC.to_bytes(8, "little"),
        "a number has more than 64 bits",
    ),
    "remarks past the end": (
        EMPTY + footer(handle(1, len(EMPTY)), handle(0, len(EMPTY) - 5)),
        "block of remarks: it goes from 1 to ",
    ),
    "listing past the end": (
        EMPTY + footer(handle(0, len(EMPTY) - 5), handle(2**63, 5)),
        "block that lists blocks: it goes from 9223372036854775808",
    ),
    "block past the end": (beyond(0, 10**6), "block at 0: it goes from 0 to 1000005"),
    "block of 2 ** 64": (beyond(2**64 - 1, 2**64 - 1), "it goes from 18446744073709551615"),
    "block in the footer": (beyond(10, len(table(GOOD)) - 30), "it goes from 10"),
    "place with more behind": (
        add_index(add_checksum(GOOD), [(0, b"\xff", handle(0, len(GOOD)) + b"\0")]),
        "there is more than a place for",
    ),
    "place of one number": (
        add_index(add_checksum(GOOD), [(0, b"\xff", b"\0")]),
        "a number is cut off",
    ),
    "blocks upon each other": (
        add_index(
            add_checksum(GOOD), [(0, b"x", handle(0, len(GOOD))), (0, b"y", handle(0, len(GOOD)))]
        ),
        "the block at 0 begins within another",
    ),
    "checksum": (damaged(GOOD), "Checksum does not match: stored .* vs. calculated on"),
    "unknown compression": (table(GOOD, kind=7), "compressed in an unknown way, 7"),
    "number of eleven bytes": (
        table(ELEVEN + GOOD),
        "block at 0: a number has more than 64 bits",
    ),
    "number of 65 bits": (table(SIXTY_FIVE + GOOD), "a number has more than 64 bits"),
    "shared with nothing": (
        table(block([(1, b"", HEAD)])),
        "key at 0 is not whole",
    ),
    "shared beyond the key before": (
        table(block([*PAIRS, (2, b"c", ENTRY)])),
        "shares more bytes than the one before it has",
    ),
    "shared at a whole key": (
        table(block([*PAIRS, (1, b"c", ENTRY)], (0, START))),
        f"the key at {START} is not whole",
    ),
    "key cut off": (table(b"\0\x7f\0" + block(())), "the key and value at 0 are cut off"),
    "value cut off": (table(b"\0\0\x7f" + block(())), "the key and value at 0 are cut off"),
    "key and value cut off together": (
        table(block(PAIRS)[:-8] + b"\0\1\1a" + block(())[-8:]),
        "are cut off",
    ),
    "whole keys beyond the block": (
        table(block(PAIRS, count=10**9)),
        "1000000000 whole keys are listed in",
    ),
    "no whole keys": (table(block(PAIRS, (), 0)), "0 whole keys are listed in"),
    "whole keys out of order": (
        table(block(PAIRS, (len(b"\0\0\6") + len(HEAD), 0))),
        "no key begins at",
    ),
    "whole key between keys": (table(block(PAIRS, (0, 5))), "no key begins at 5"),
    "whole key twice": (table(block(PAIRS, (0, 0))), "no key begins at 0"),
    "block of three bytes": (table(b"abc"), "it is too short"),
    "keys out of order": (
        table(block(pairs({b"": HEAD, b"b": ENTRY, b"a": ENTRY}))),
        "key b'a' comes after b'b'",
    ),
    "key twice": (
        table(block([*PAIRS, (0, b"b", ENTRY)])),
        "key b'b' comes after b'b'",
    ),
    "keys out of order between blocks": (
        table(GOOD, block(pairs({b"a": ENTRY})), limits=[b"b", b"c"]),
        "key b'a' comes after b'b'",
    ),
    "key beyond the limit": (table(GOOD, limits=[b"a"]), "its keys go beyond b'a'"),
    "key before the limit of the block before": (
        table(GOOD, block(pairs({b"c": ENTRY})), limits=[b"d", b"e"]),
        "key b'c' comes after b'd'",
    ),
    "much made of little": (
        table(block([
            (0, b"", HEAD), (0, b"x" * 4000, ENTRY),
            *[(4000 + number, b"x", ENTRY) for number in range(3000)],
        ])),
        "its keys have more than 16 times its bytes",
    ),
    "no header": (table(block(pairs({b"a": ENTRY}))), "index: it has no header"),
    "no keys": (table(block(())), "index: it has no header"),
    "no blocks": (table(), "index: it has no header"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED_TABLES)
def test_damaged_table_raises(name: str, tmp_path: Path) -> None:
    data, words = DAMAGED_TABLES[name]
    (tmp_path / "ckpt.index").write_bytes(data)
    (tmp_path / f"ckpt{DATA}").write_bytes(PAYLOAD)
    prefix = tmp_path / "ckpt"
    for call in (bundle.read, bundle.describe):
        with pytest.raises(DataLossError, match=words) as error:
            call(prefix)
        assert str(error.value).startswith(f"{prefix}: ")


def test_undamaged_tables_are_read(tmp_path: Path) -> None:
    (tmp_path / f"ckpt{DATA}").write_bytes(PAYLOAD)
    second = block(pairs({b"c": entry(b"", shape=(0,)).encode_message()}))
    for data in (table(GOOD), table(GOOD, second, limits=[b"b", b"cc"])):
        (tmp_path / "ckpt.index").write_bytes(data)
        assert bundle.read(tmp_path / "ckpt").tensors["a"].array().tolist() == [1.0, 1.0]


def test_snappy_compression_raises_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "ckpt.index").write_bytes(table(GOOD, kind=1))
    with pytest.raises(UnsupportedCheckpointError, match=r"compressed with snappy.*save it"):
        bundle.read(tmp_path / "ckpt")


def test_truncated_index_raises(tmp_path: Path) -> None:
    small(tmp_path / "ckpt")
    index = (tmp_path / "ckpt.index").read_bytes()
    for length in range(len(index)):
        (tmp_path / "ckpt.index").write_bytes(index[:length])
        with pytest.raises(DataLossError):
            bundle.read(tmp_path / "ckpt")


def test_oversized_index_raises_before_reading(tmp_path: Path) -> None:
    with (tmp_path / "ckpt.index").open("wb") as file:
        file.truncate(1 << 40)  # takes no room
    with pytest.raises(DataLossError, match="the index has 1099511627776 bytes, no more than"):
        bundle.read(tmp_path / "ckpt")
    os.truncate(tmp_path / "ckpt.index", 1 << 26)
    with pytest.raises(DataLossError, match="does not end as a table does"):
        bundle.read(tmp_path / "ckpt")


def test_other_paths_are_not_bundles(tmp_path: Path) -> None:
    small(tmp_path / "ckpt")
    assert bundle.is_bundle(tmp_path / "ckpt")
    assert not bundle.is_bundle(tmp_path / "other")
    assert not bundle.is_bundle(tmp_path / "ckpt.other")
    assert not bundle.is_bundle(tmp_path / "no folder" / "ckpt")
    assert not bundle.is_bundle("no\0name")
    (tmp_path / "text.index").write_text("text" * 20)
    (tmp_path / "folder.index").mkdir()
    os.mkfifo(tmp_path / "pipe.index")
    (tmp_path / "link.index").symlink_to("ckpt.index")
    for name in ("text", "folder", "pipe", "link"):
        assert not bundle.is_bundle(tmp_path / name), name


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for call in (bundle.read, bundle.describe):
        with pytest.raises(MissingFileError, match=r"ckpt\.index: No such file or directory\."):
            call(tmp_path / "ckpt")
    with pytest.raises(MissingFileError, match="No such file or directory"):
        bundle.read(tmp_path / "no folder" / "ckpt")
    (tmp_path / f"{small(tmp_path / 'ckpt')}{DATA}").unlink()
    with pytest.raises(MissingFileError, match=rf"ckpt{DATA}: No such file or directory\."):
        bundle.read(tmp_path / "ckpt")
    assert [part.name for part in bundle.describe(tmp_path / "ckpt")] == ["dec/bias", "dec/kernel"]


def test_bundle_file_name_gives_its_prefix(tmp_path: Path) -> None:
    prefix = small(tmp_path / "ckpt")
    for suffix in (".index", DATA):
        assert bits(Path(f"{prefix}{suffix}")) == bits(prefix)
        assert bundle.is_bundle(f"{prefix}{suffix}")
        assert bundle.describe(f"{prefix}{suffix}") == bundle.describe(prefix)
    second_prefix = small(tmp_path / "a.index")  # which is a prefix, too
    Path(f"{second_prefix}{DATA}").unlink()
    with pytest.raises(MissingFileError, match=rf"a\.index{DATA}"):
        bundle.read(second_prefix)


def test_files_are_found_in_unlistable_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = small(tmp_path / "ckpt")
    expected = bits(prefix)
    monkeypatch.setattr(checkpoint_directory, "_BY_DIRECTORY", False)
    assert bits(prefix) == expected
    with pytest.raises(MissingFileError, match=r"other\.index: No such file"):
        bundle.read(tmp_path / "other")
    (tmp_path / "link.index").symlink_to("ckpt.index")
    with pytest.raises(UnsafeCheckpointError, match=r"link\.index is a link"):
        bundle.read(tmp_path / "link")
    monkeypatch.chdir(tmp_path)
    assert bits(Path("ckpt")) == expected


def test_file_truncated_during_reading_raises(tmp_path: Path) -> None:
    prefix = small(tmp_path / "ckpt")
    with checkpoint_directory.Folder(str(prefix)) as home:
        file = home.open_shard(DATA)
        os.truncate(f"{prefix}{DATA}", 10)
        with pytest.raises(CorruptFileError, match=rf"ckpt{DATA} ends at 10, within what is read"):
            file.read(4, file.size - 4)


def test_errors_of_the_system_are_raised(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long"):
        bundle.read(tmp_path / ("x" * 300))

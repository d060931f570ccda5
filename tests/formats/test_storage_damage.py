"""Damaged files raise errors, for any flipped bit and any end; forged ones, too."""

from __future__ import annotations

import os
import random
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import storage_files
from storage_files import (
    DOCUMENT,
    Header,
    a_few,
    counting_tensor,
    have_equal_contents,
    make_file,
    packed,
    parts,
)
from thalweg._formats import container, header
from thalweg._formats.container import Contents
from thalweg.errors import (
    CheckpointMismatchError,
    DataLossError,
    InvalidConfigError,
    ThalwegError,
    UnsupportedCheckpointError,
)

SUMS = re.compile(r"stored \d+ vs\. calculated on the restored bytes \d+$")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a file of about 3 KB."""
    path = tmp_path_factory.mktemp("small") / "ckpt"
    tensors = {**a_few(), "more": counting_tensor("F64", (250,), 7)}
    container.write(path, tensors, DOCUMENT)
    assert 2900 < path.stat().st_size < 3300
    return path


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a file of 16 MB."""
    path = tmp_path_factory.mktemp("large") / "ckpt"
    container.write(path, {f"w{i}": counting_tensor("F32", (500, 1000), i) for i in range(8)}, {})
    return path


def flipped(path: Path, bits: Iterator[int] | range) -> Iterator[int]:
    """Flip one bit of a file after the other, each until the next number is requested."""
    with path.open("r+b", buffering=0) as file:
        for bit in bits:
            place = bit // 8
            initial = os.pread(file.fileno(), 1, place)
            os.pwrite(file.fileno(), bytes([initial[0] ^ 1 << bit % 8]), place)
            yield bit
            os.pwrite(file.fileno(), initial, place)


def owner(path: Path) -> Callable[[int], str]:
    """Return a function from a place of a file to the tensor there, as messages name it."""
    entries = container.describe(path).tensors

    def look(place: int) -> str:
        for name, entry in entries.items():
            if entry.begin <= place < entry.begin + entry.bytes:
                return repr(name)
        return ""

    return look


def refuses_all(path: Path, bits: Iterator[int] | range) -> int:
    """Assert that reading fails with each of these bits changed; return the number of bits."""
    look, count = owner(path), 0
    for bit in flipped(path, bits):
        name = look(bit // 8)
        with pytest.raises(DataLossError) as error:
            container.read(path)
        text = str(error.value)
        assert text.startswith(f"{path}: {name}"), (bit, text)
        assert not name or SUMS.search(text), (bit, text)
        count += 1
    container.verify(path)
    return count


def test_flipped_bit_in_any_byte_raises(small: Path) -> None:
    dice, size = random.Random(0), small.stat().st_size
    assert refuses_all(small, (8 * i + dice.randrange(8) for i in range(size))) == size


@pytest.mark.slow
def test_any_flipped_bit_raises(small: Path) -> None:
    size = small.stat().st_size
    assert refuses_all(small, range(8 * size)) == 8 * size


def test_random_flipped_bits_of_a_larger_file_raise(large: Path) -> None:
    dice, size = random.Random(0), large.stat().st_size
    assert refuses_all(large, (dice.randrange(8 * size) for _ in range(20))) == 20


@pytest.mark.slow
def test_many_random_flipped_bits_of_a_larger_file_raise(large: Path) -> None:
    dice, size = random.Random(1), large.stat().st_size
    assert refuses_all(large, (dice.randrange(8 * size) for _ in range(1000))) == 1000


@pytest.mark.parametrize("function", [container.read, container.describe])
def test_truncated_files_of_any_length_raise(
    function: Callable[..., Any], small: Path, tmp_path: Path
) -> None:
    raw, short = small.read_bytes(), tmp_path / "short"
    short.write_bytes(raw)
    for length in range(len(raw) - 1, -1, -1):
        os.truncate(short, length)
        with pytest.raises(DataLossError):
            function(short)


def test_trailing_bytes_raise(small: Path, tmp_path: Path) -> None:
    for extra in (b"\0", b"x" * 100, small.read_bytes()):
        (tmp_path / "long").write_bytes(small.read_bytes() + extra)
        with pytest.raises(DataLossError, match=r"It has \d+ bytes; its header tells of \d+"):
            container.read(tmp_path / "long")


def test_file_truncated_during_reading_raises(large: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    path.write_bytes(large.read_bytes())

    def cut(*_: Any) -> None:
        os.truncate(path, 9_000_000)

    with pytest.raises(DataLossError, match=r"'w[0-9]': (The file ends within it|Checksum)"):
        container.read(path, progress=cut)


# Headers that lie about their length.

LENGTHS = {
    "nothing": b"",
    "7 bytes": b"1234567",
    "length 0": bytes(8),
    "length 0, and more": bytes(100),
    "length 2": (2).to_bytes(8, "little") + b"{}",
    "length 101 MB": (101_000_000).to_bytes(8, "little") + b"{",
    "length 2^63": (2**63).to_bytes(8, "little") + b"{" * 100,
    "length 2^64 - 1": b"\xff" * 8 + b"{" * 100,
    "longer than the file": (101).to_bytes(8, "little") + b"{" * 100,
}


@pytest.mark.parametrize("size", [None, 200_000_000])
@pytest.mark.parametrize("begin", LENGTHS.values(), ids=LENGTHS)
def test_inconsistent_lengths_raise(begin: bytes, size: int | None, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(begin)
    if size is not None:
        os.truncate(path, size)  # with a hole that takes no room
    tracemalloc.start()
    try:
        for function in (container.read, container.describe, container.verify):
            with pytest.raises(DataLossError):
                function(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_memory_is_bounded_by_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    container.write(path, {"x": counting_tensor("F32", (3,))}, {})

    def change(header: Header, manifest: Header) -> None:
        header["x"].update(shape=[2**40], data_offsets=[0, 2**42])
        manifest["tensors"]["x"][1] = [2**40]

    path.write_bytes(storage_files.forged(path, change))
    tracemalloc.start()
    try:
        with pytest.raises(DataLossError, match="its header tells of"):
            container.read(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


# Files whose header has the right checksum, but says what cannot be.

Change = Callable[[Header, Header], Any]


def entry(name: str, **values: Any) -> Change:
    return lambda header, manifest: header[name].update(values)


def both(name: str, dtype: str, shape: list[Any], offsets: list[Any]) -> Change:
    def change(header: Header, manifest: Header) -> None:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        manifest["tensors"][name] = [dtype, shape, 0]

    return change


def noted(name: str, value: Any) -> Change:
    return lambda header, manifest: manifest["tensors"].update({name: value})


def without(place: int, name: str) -> Change:
    return lambda *args: (args[place].get("tensors") or args[place]).pop(name) and None


def moved(header: Header, manifest: Header) -> None:
    """Swap the data of two tensors, but not their headers."""
    first, second = header.pop("a"), header.pop("b")
    header["b"], header["a"] = second, first


def metadata(**values: Any) -> Change:
    return lambda header, manifest: header["__metadata__"].update(values)


# In the files that are changed "a" is F32 [2] at 0 to 8, and "b" U8 [3] at 8 to 11.
FORGED: dict[str, tuple[Change, type[ThalwegError], str]] = {
    "a gap": (entry("b", data_offsets=[9, 12]), DataLossError, "'b': Its bytes are at [9, 12]"),
    "an overlap": (entry("b", data_offsets=[7, 10]), DataLossError, "3 from 8 on were expected"),
    "another order": (moved, DataLossError, "'b': Its bytes are at [8, 11]; 3 from 0"),
    "a size that is none": (entry("a", shape=[3]), DataLossError, "12 from 0 on were expected"),
    "a negative size": (both("a", "F32", [-2], [0, 8]), DataLossError, "[-2] is no shape"),
    "two negative sizes": (both("a", "F32", [-1, -2], [0, 8]), DataLossError, "is no shape"),
    "a size beyond memory": (both("a", "U8", [2**63], [0, 8]), DataLossError, "is no shape"),
    "an empty size beyond memory": (both("a", "U8", [0, 2**63], [0, 0]), DataLossError, "no shape"),
    "a product beyond memory": (both("a", "U8", [2**40] * 4, [0, 8]), DataLossError, "no shape"),
    "a product that wraps": (both("a", "U8", [2**32, 2**32, 8], [0, 8]), DataLossError, "no shape"),
    "65 dimensions": (both("a", "F32", [1] * 64 + [2], [0, 8]), DataLossError, "is no shape"),
    "a size that is true": (both("a", "F32", [True, 2], [0, 8]), DataLossError, "is no shape"),
    "a size that is 2.0": (both("a", "F32", [2.0], [0, 8]), DataLossError, "is no shape"),
    "a shape that is a number": (entry("a", shape=2), DataLossError, "2 is no shape"),
    "negative offsets": (entry("a", data_offsets=[-8, 0]), DataLossError, "at [-8, 0]"),
    "offsets the wrong way": (entry("a", data_offsets=[8, 0]), DataLossError, "at [8, 0]"),
    "three offsets": (entry("a", data_offsets=[0, 8, 8]), DataLossError, "at [0, 8, 8]"),
    "offsets 0.0": (entry("a", data_offsets=[0.0, 8.0]), DataLossError, "at [0.0, 8.0]"),
    "an unknown dtype": (entry("a", dtype="F31"), DataLossError, "'F31' is no dtype of a file"),
    "a dtype that is a list": (entry("a", dtype=["F32"]), DataLossError, "is no dtype"),
    "a dtype of ours": (entry("a", dtype="C64", shape=[1]), DataLossError, "'C64' is no dtype"),
    "one more key": (entry("a", more=1), DataLossError, "not one of a tensor"),
    "an entry that is a list": (
        lambda header, manifest: header.update(a=[1]), DataLossError, "not one of a tensor",
    ),
    "a name that is not noted": (
        without(1, "a"), CheckpointMismatchError, "'a' is in the header only",
    ),
    "another name that is noted": (
        noted("c", ["F32", [0], 0]), CheckpointMismatchError, "'c' is in the manifest only",
    ),
    "another dtype": (
        noted("a", ["I32", [2], 0]), CheckpointMismatchError,
        "'a' is ('F32', [2]) in the header, not ('I32', [2])",
    ),
    "another shape": (
        noted("a", ["F32", [2, 1], 0]), CheckpointMismatchError, "not ('F32', [2, 1])",
    ),
    "complex in the manifest only": (
        noted("a", ["C64", [2], 0]), CheckpointMismatchError, "not ('F32', [2, 2])",
    ),
    "no checksum": (noted("a", ["F32", [2]]), CheckpointMismatchError, "not one of a tensor"),
    "a negative checksum": (noted("a", ["F32", [2], -1]), CheckpointMismatchError, "not one of"),
    "a long checksum": (noted("a", ["F32", [2], 2**32]), CheckpointMismatchError, "not one of"),
    "a checksum that is text": (noted("a", ["F32", [2], "1"]), CheckpointMismatchError, "not one"),
    "a wrong checksum": (noted("a", ["F32", [2], 1]), DataLossError, "'a': Checksum does not"),
    "no document": (
        lambda header, manifest: manifest.pop("document") and None, InvalidConfigError, "the parts",
    ),
    "a document that is a list": (
        lambda header, manifest: manifest.update(document=[]), InvalidConfigError, "the parts",
    ),
    "more in the manifest": (
        lambda header, manifest: manifest.update(more={}), InvalidConfigError, "the parts",
    ),
    "more metadata": (metadata(more="x"), DataLossError, "The metadata have no manifest"),
    "version 2": (metadata(version="2"), UnsupportedCheckpointError, "The file is of version 2"),
    "version 999999999": (metadata(version="9" * 9), UnsupportedCheckpointError, "of version 9999"),
    "no version": (metadata(version="1.5"), DataLossError, "its header is damaged"),
    "another format": (metadata(format="pt"), DataLossError, "It is no file of thalweg"),
    "more data": (lambda header, manifest: bytes(12), DataLossError, "its header tells of"),
    "less data": (lambda header, manifest: bytes(10), DataLossError, "its header tells of"),
}  # fmt: skip


@pytest.fixture
def valid(tmp_path: Path) -> Path:
    tensors = {"a": counting_tensor("F32", (2,)), "b": counting_tensor("U8", (3,))}
    container.write(tmp_path / "plain", tensors, {"a": 1})
    return tmp_path / "plain"


@pytest.mark.parametrize(("change", "error", "message"), FORGED.values(), ids=FORGED)
def test_forged_files_raise(
    change: Change, error: type[ThalwegError], message: str, valid: Path
) -> None:
    valid.write_bytes(storage_files.forged(valid, change))
    functions = [container.read, container.verify]
    if "Checksum" not in message:
        functions.append(container.describe)
    for function in functions:
        with pytest.raises(error, match=re.escape(message)) as raised:
            function(valid)
        assert type(raised.value) is error
        assert str(raised.value).startswith(f"{valid}: ")


def test_repacked_files_are_read(valid: Path) -> None:
    initial = container.read(valid)
    valid.write_bytes(packed(*parts(valid.read_bytes())))
    assert have_equal_contents(container.read(valid), initial)


def test_many_differences_are_abbreviated(valid: Path) -> None:
    def change(header: Header, manifest: Header) -> None:
        manifest["tensors"].update({f"c{i}": ["F32", [0], 0] for i in range(25)})

    valid.write_bytes(storage_files.forged(valid, change))
    with pytest.raises(CheckpointMismatchError) as error:
        container.read(valid)
    lines = str(error.value).split("\n")
    assert len(lines) == 13
    assert lines[-2:] == ["and 15 more", "Nothing was loaded."]


# Headers and manifests that are no good JSON, or that safetensors takes and we do not.


def remade(path: Path, change: Callable[[str], str | bytes]) -> None:
    """Replace the text of the header."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    path.write_bytes(make_file(change(raw[8 : 8 + length].decode()), raw[8 + length :]))


TEXTS: dict[str, tuple[Callable[[str], str | bytes], type[ThalwegError], str]] = {
    "a name twice": (
        lambda text: text.rstrip()[:-1] + ',"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        CheckpointMismatchError, "'a' is there twice. Nothing was loaded.",
    ),
    "metadata twice": (
        lambda text: text.rstrip()[:-1] + ',"__metadata__":{}}',
        CheckpointMismatchError, "'__metadata__' is there twice",
    ),
    "a key twice": (
        lambda text: text.replace('"dtype":"F32"', '"dtype":"F32","dtype":"F32"', 1),
        CheckpointMismatchError, "'dtype' is there twice",
    ),
    "not all of it": (lambda text: text.rstrip()[:-1], DataLossError, "header: No JSON"),
    "something behind it": (lambda text: text.rstrip() + "{}", DataLossError, "header: No JSON"),
    "no UTF-8": (lambda text: text.encode() + b"\xff", DataLossError, "header: Not UTF-8"),
    "half a surrogate": (
        lambda text: text.replace('"b":', '"\\ud800":'), DataLossError, "pair of surrogates",
    ),
    "300,000 levels": (
        lambda text: text.rstrip()[:-1] + ',"c":' + "[" * 300_000 + "]" * 300_000 + "}",
        DataLossError, "More than 100 levels",
    ),
    "spaces before it": (lambda text: " " + text, DataLossError, "It is no file of thalweg"),
    "nothing": (lambda text: "", DataLossError, "It is no file of thalweg"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "error", "message"), TEXTS.values(), ids=TEXTS)
def test_forged_headers_raise(
    change: Callable[[str], str | bytes], error: type[ThalwegError], message: str, valid: Path
) -> None:
    remade(valid, change)
    with pytest.raises(error, match=re.escape(message)):
        container.read(valid)


MANIFESTS: dict[str, str] = {
    "300,000 levels": '{"tensors":{},"document":' + "[" * 300_000 + "]" * 300_000 + "}",
    "a key twice": '{"tensors":{},"document":{},"document":{}}',
    "a tensor twice": '{"tensors":{"a":["F32",[2],1],"a":["F32",[2],2]},"document":{}}',
    "NaN": '{"tensors":{},"document":{"a":NaN}}',
    "10^400": '{"tensors":{},"document":{"a":1e400}}',
    "a million digits": '{"tensors":{},"document":{"a":' + "1" * 1_000_000 + "}}",
    "no JSON": "cos\nsystem\n(S'true'\ntR.",
    "nothing": "",
    "a number": "1",
    "a list": "[]",
}


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS)
def test_forged_manifests_raise(manifest: str, valid: Path) -> None:
    header, _, data = parts(valid.read_bytes())
    valid.write_bytes(packed(header, manifest, data))
    with pytest.raises(InvalidConfigError, match=re.escape(f"{valid}: manifest: ")):
        container.read(valid)


# Names lead nowhere: they are keys.

NAMES = ["../../x", "/etc/passwd", "a\0b", "x" * 1_000_000, "CON", "", ".", "a\nb", "\u202e", "'"]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:12]))
def test_tensor_names_are_only_keys(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    container.write(folder / "a", {name: counting_tensor("F32", (2,))}, {name: name})
    contents = container.read(folder / "a")
    assert have_equal_contents(
        contents, Contents({name: name}, {name: counting_tensor("F32", (2,))})
    )
    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(folder) == ["a"]


def test_file_of_another_program_raises(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": storage_files.counting_tensor("F32", (2,)).array()}, tmp_path / "a")
    with pytest.raises(
        DataLossError,
        match="no file of thalweg: it is a file of safetensors that another library wrote",
    ):
        container.read(tmp_path / "a")
    assert header.LIMIT == 100_000_000

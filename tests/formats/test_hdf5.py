"""HDF5 files: those of h5py are read to the bit, and misleading ones raise errors by name."""

from __future__ import annotations

import random
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hdf5_files import arrays, made, texts
from thalweg._formats.hdf5.lookup3 import lookup3
from thalweg.errors import (
    DataLossError,
    MissingFileError,
    UnsafeCheckpointError,
    UnsupportedCheckpointError,
)

NUMBERS = np.random.default_rng(0)
MATRIX = NUMBERS.normal(size=(30, 20)).astype("f4")
Fill = Callable[[h5py.File], Any]

# --- What is read ------------------------------------------------------------------------------

ARRAYS: dict[str, Any] = {
    "float32": MATRIX,
    "float64": MATRIX.astype("f8"),
    "float16": MATRIX.astype("f2"),
    "int8": np.arange(-5, 5, dtype="i1"),
    "int16": np.arange(-5, 5, dtype="i2"),
    "int32": np.arange(-5, 5, dtype="i4"),
    "int64": np.array(-(2**63)),
    "uint8": np.arange(9, dtype="u1"),
    "uint16": np.arange(9, dtype="u2"),
    "uint32": np.arange(9, dtype="u4"),
    "uint64": np.array([2**64 - 1], "u8"),
    "bool": np.array([[True, False], [False, True]]),
    "big": MATRIX.astype(">f4"),
    "big integers": np.arange(-5, 5, dtype=">i8"),
    "scalar": np.float32(0.1),
    "no rows": np.zeros((0, 3), "f4"),
    "odd numbers": np.array([np.nan, -np.inf, -0.0, 1e-40], "f4"),
}


@pytest.mark.parametrize("settings", [{}, {"libver": "latest"}, {"track_order": True}], ids=str)
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_read_to_the_bit(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    path = made(
        tmp_path / "a.h5", lambda file: file.create_dataset("x", data=ARRAYS[name]), **settings
    )
    expected = np.asarray(ARRAYS[name])
    expected = expected.astype(expected.dtype.newbyteorder("<"))
    array = arrays(path)["x"].array()
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    assert array.tobytes() == expected.tobytes()


CHUNKED: dict[str, dict[str, Any]] = {
    "chunks": {"chunks": (7, 9)},
    "one chunk": {"chunks": (30, 20)},
    "gzip": {"chunks": (7, 9), "compression": "gzip"},
    "gzip and shuffle": {"chunks": (7, 9), "compression": "gzip", "shuffle": True},
    "shuffle": {"chunks": (30, 1), "shuffle": True},
    "lzf": {"chunks": (7, 9), "compression": "lzf"},
    "lzf and shuffle": {"chunks": (30, 20), "compression": "lzf", "shuffle": True},
    "rows that may be added": {"chunks": (1, 20), "maxshape": (None, 20)},
    "hundreds of chunks": {"chunks": (1, 1), "compression": "gzip"},
}


@pytest.mark.parametrize("array", [MATRIX, np.zeros((30, 20), "i8")], ids=["numbers", "zeros"])
@pytest.mark.parametrize("name", CHUNKED)
def test_chunks_are_assembled(name: str, array: Any, tmp_path: Path) -> None:
    path = made(
        tmp_path / "a.h5", lambda file: file.create_dataset("x", data=array, **CHUNKED[name])
    )
    assert np.array_equal(arrays(path)["x"].array(), array)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 300, 5000])
def test_lzf_back_references_are_expanded(size: int, tmp_path: Path) -> None:
    dice = random.Random(size)
    text = bytes(dice.choice(b"ab") for _ in range(size)) + bytes(size) + b"abc" * size
    array = np.frombuffer(text, np.uint8)
    path = made(
        tmp_path / "a.h5",
        lambda file: file.create_dataset("x", data=array, chunks=array.shape, compression="lzf"),
    )
    assert np.array_equal(arrays(path)["x"].array(), array)


def test_small_arrays_in_their_own_header_are_read(tmp_path: Path) -> None:
    def fill(file: h5py.File) -> None:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((4,))
        inner = h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, settings)
        inner.write(h5py.h5s.ALL, h5py.h5s.ALL, MATRIX[0, :4].copy())

    assert np.array_equal(arrays(made(tmp_path / "a.h5", fill))["x"].array(), MATRIX[0, :4])


@pytest.mark.parametrize("settings", [{}, {"libver": "latest"}, {"track_order": True}], ids=str)
@pytest.mark.parametrize("count", [1, 8, 9, 40, 700, pytest.param(3000, marks=pytest.mark.slow)])
def test_groups_of_any_size_are_read(count: int, settings: dict[str, Any], tmp_path: Path) -> None:
    names = [f"name {'x' * (number % 50)} {number}" for number in range(count)]

    def fill(file: h5py.File) -> None:
        for number, name in enumerate(names):
            file[name] = np.int32(number)

    datasets = arrays(made(tmp_path / "a.h5", fill, **settings))
    assert {name: datasets[name].array().item() for name in names} == {
        name: number for number, name in enumerate(names)
    }
    assert len(datasets) == count


def test_names_may_have_any_letters(tmp_path: Path) -> None:
    path = made(tmp_path / "a.h5", lambda file: file.create_dataset("Schicht ä/重み", data=1))
    assert list(arrays(path)) == ["Schicht ä/重み"]


ATTRIBUTES: dict[str, tuple[Any, list[bytes]]] = {
    "text": ("é", ["é".encode()]),
    "bytes": (b"abc", [b"abc"]),
    "empty": ("", [b""]),
    "list": ([b"a", b"", b"ccc"], [b"a", b"", b"ccc"]),
    "fixed": (np.array([b"a", b"bbb"]), [b"a", b"bbb"]),
    "matrix": (np.array([[b"a"], [b"b"]]), [b"a", b"b"]),
    "long": (b"x" * 100_000, [b"x" * 100_000]),
    "many": ([b"%d" % number for number in range(3000)], [b"%d" % n for n in range(3000)]),
    "none": (np.array([]), []),
}


@pytest.mark.parametrize("settings", [{}, {"libver": "latest"}, {"track_order": True}], ids=str)
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_are_read(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    value, expected = ATTRIBUTES[name]

    def fill(file: h5py.File) -> None:
        file.create_group("g").attrs["first"] = b"1"
        file["g"].attrs["x"] = value

    path = made(tmp_path / "a.h5", fill, **settings)
    assert texts(path, "g") == {"first": [b"1"], "x": expected}


def test_numeric_attributes_are_not_strings(tmp_path: Path) -> None:
    path = made(tmp_path / "a.h5", lambda file: file.attrs.update({"x": 1.0}))
    with pytest.raises(UnsupportedCheckpointError, match="'x' is no text"):
        texts(path)


# --- The checksum of newer files ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    # The first two are published with the function; the others are what HDF5's newer files have.
    [(b"", 0xDEADBEEF), (b"Four score and seven years ago", 0x17770551)],
)
def test_lookup3_has_published_values(data: bytes, expected: int) -> None:
    assert lookup3(data) == expected


@pytest.mark.parametrize("settings", [{"libver": "latest"}, {"track_order": True}], ids=str)
def test_newer_structures_have_checksums(settings: dict[str, Any], tmp_path: Path) -> None:
    def fill(file: h5py.File) -> None:
        for number in range(20):
            file[f"name{number}"] = np.int32(number)

    path = made(tmp_path / "a.h5", fill, **settings)
    content = path.read_bytes()
    for signature in (b"OHDR", b"FRHP", b"FHDB", b"BTHD", b"BTLF"):
        damaged = bytearray(content)
        damaged[content.index(signature) + 12] ^= 1
        path.write_bytes(damaged)
        with pytest.raises((DataLossError, UnsupportedCheckpointError)):
            arrays(path)


# --- What is refused ---------------------------------------------------------------------------


def _soft(file: h5py.File) -> None:
    file["there"], file["x"] = 1.0, h5py.SoftLink("/there")


def _soft_cycle(file: h5py.File) -> None:
    file["a"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("/a")


def _external(file: h5py.File) -> None:
    file["x"] = h5py.ExternalLink("/etc/passwd", "/x")


def _hard_cycle(file: h5py.File) -> None:
    inner = file.create_group("a/b")
    inner["c"] = file["a"]


def _twice(file: h5py.File) -> None:
    file["x"] = MATRIX
    file["y"] = file["x"]


def _virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (4,))
    file.create_virtual_dataset("x", layout)


def _raw(file: h5py.File) -> None:
    file.create_dataset("x", (4,), "f4", external=[("/etc/passwd", 0, 16)])


def _references(file: h5py.File) -> None:
    file["a"] = 1.0
    file.create_dataset("x", data=np.array([file["a"].ref], h5py.ref_dtype))


def _regions(file: h5py.File) -> None:
    file["a"] = MATRIX
    file.create_dataset("x", data=np.array([file["a"].regionref[:2]], h5py.regionref_dtype))


def _lists(file: h5py.File) -> None:
    file.create_dataset("x", (2,), h5py.vlen_dtype("f4"))


def _strings(file: h5py.File) -> None:
    file["x"] = "text"


def _fixed_strings(file: h5py.File) -> None:
    file["x"] = np.array([b"text"])


def _records(file: h5py.File) -> None:
    file["x"] = np.zeros(2, [("a", "f4"), ("b", "i4")])


def _enumeration(file: h5py.File) -> None:
    file.create_dataset("x", (2,), h5py.enum_dtype({"A": 0, "B": 1}))


def _subarrays(file: h5py.File) -> None:
    file.create_dataset("x", (2,), np.dtype(("f4", (3,))))


def _long_floats(file: h5py.File) -> None:
    file["x"] = np.zeros(2, np.longdouble)


def _opaque(file: h5py.File) -> None:
    file["x"] = np.zeros(2, "V3")


def _named_type(file: h5py.File) -> None:
    file["y"] = np.dtype("f4")
    file.create_dataset("x", (2,), file["y"])


def _fills(file: h5py.File) -> None:
    file.create_dataset("x", (2**40,), "f4", fillvalue=1.0)


def _chunked_fills(file: h5py.File) -> None:
    file.create_dataset("x", (2**40,), "f4", chunks=(2**20,), fillvalue=1.0)


def _missing_chunk(file: h5py.File) -> None:
    file.create_dataset("x", (4, 4), "f4", chunks=(2, 2))[:2] = 1.0


def _bomb(file: h5py.File) -> None:
    x = file.create_dataset("x", (2**28,), "f4", chunks=(2**28,), compression="gzip")
    x.id.write_direct_chunk((0,), zlib.compress(bytes(100)))


def _short_chunk(file: h5py.File) -> None:
    x = file.create_dataset("x", (100,), "f4", chunks=(100,), compression="gzip")
    x.id.write_direct_chunk((0,), zlib.compress(bytes(399)))


def _long_chunk(file: h5py.File) -> None:
    x = file.create_dataset("x", (100,), "f4", chunks=(100,), compression="gzip")
    x.id.write_direct_chunk((0,), zlib.compress(bytes(401)))


def _no_gzip(file: h5py.File) -> None:
    x = file.create_dataset("x", (100,), "f4", chunks=(100,), compression="gzip")
    x.id.write_direct_chunk((0,), b"no gzip" * 3)


def _no_lzf(file: h5py.File) -> None:
    x = file.create_dataset("x", (100,), "f4", chunks=(100,), compression="lzf")
    x.id.write_direct_chunk((0,), b"\xe0\x10\xff" * 3)


def _filter(**options: Any) -> Fill:
    return lambda file: file.create_dataset("x", data=np.arange(100), chunks=(10,), **options)


def _plugin(file: h5py.File) -> None:
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((4,))
    settings.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))
    space = h5py.h5s.create_simple((4,))
    h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, settings)


def _many_attributes(file: h5py.File) -> None:
    for number in range(20):
        file.attrs[f"a{number}"] = b"x"


def _deep(file: h5py.File) -> None:
    file["/".join("a" * 80)] = 1.0


def _long_name(file: h5py.File) -> None:
    file["a" * 2000] = 1.0


UNSUPPORTED: dict[str, tuple[Fill, dict[str, Any], type[Exception], str]] = {
    "soft link": (_soft, {}, UnsafeCheckpointError, "at byte .*: 'x' is a soft link"),
    "circle of soft links": (_soft_cycle, {}, UnsafeCheckpointError, "'a' is a soft link"),
    "new soft link": (_soft, {"track_order": True}, UnsafeCheckpointError, "'x' is a soft link"),
    "external link": (_external, {}, UnsafeCheckpointError, "'x' is an external link"),
    "circle": (_hard_cycle, {}, DataLossError, "an object is reached twice"),
    "two names": (_twice, {}, DataLossError, "an object is reached twice"),
    "virtual": (_virtual, {}, UnsafeCheckpointError, "'x': a virtual dataset"),
    "raw file": (_raw, {}, UnsafeCheckpointError, "'x': elements are in other files"),
    "references": (_references, {}, UnsafeCheckpointError, "elements are references"),
    "regions": (_regions, {}, UnsafeCheckpointError, "elements are references"),
    "lists": (_lists, {}, UnsupportedCheckpointError, "lists of any length are not read"),
    "strings": (_strings, {}, UnsupportedCheckpointError, "'x' has elements that are no numbers"),
    "fixed": (_fixed_strings, {}, UnsupportedCheckpointError, "elements that are no numbers"),
    "records": (_records, {}, UnsupportedCheckpointError, "records are not read"),
    "enumeration": (_enumeration, {}, UnsupportedCheckpointError, "enumerations are not read"),
    "subarrays": (_subarrays, {}, UnsupportedCheckpointError, "arrays in arrays are not read"),
    "80 bits": (_long_floats, {}, UnsupportedCheckpointError, "floating point numbers of"),
    "opaque": (_opaque, {}, UnsupportedCheckpointError, "elements that are no numbers"),
    "named type": (_named_type, {}, UnsupportedCheckpointError, "what objects share, as a named"),
    "fill values": (
        _fills, {}, DataLossError, "'x' should have 4398046511104 bytes, and 0 are stored",
    ),
    "fill values of chunks": (_chunked_fills, {}, DataLossError, "'x' should have 4398046511104"),
    "missing chunk": (_missing_chunk, {}, DataLossError, "'x' has 2 chunks and should have 4"),
    "bomb": (_bomb, {}, DataLossError, "'x' should have 1073741824 bytes, and 12 are stored"),
    "short chunk": (_short_chunk, {}, DataLossError, "a chunk has 399 bytes and should have 400"),
    "long chunk": (_long_chunk, {}, DataLossError, "a chunk has 401 bytes and should have 400"),
    "no gzip": (_no_gzip, {}, DataLossError, "a chunk cannot be inflated"),
    "no lzf": (_no_lzf, {}, DataLossError, "a chunk cannot be expanded"),
    "fletcher32": (
        _filter(fletcher32=True), {}, UnsupportedCheckpointError, r"filter 3 \(fletcher32\) is not",
    ),
    "scaleoffset": (
        _filter(scaleoffset=2), {}, UnsupportedCheckpointError, r"filter 6 \(scaleoffset\) is not",
    ),
    "plugin": (
        _plugin, {}, UnsupportedCheckpointError, "filter 32015 is not read; .*h5repack -f NONE",
    ),
    "new chunks": (
        _filter(), {"libver": "latest"}, UnsupportedCheckpointError, "h5repack -l CONTI",
    ),
    "many attributes": (
        _many_attributes, {"libver": "latest"}, UnsupportedCheckpointError, "more than eight",
    ),
    "user block": (
        _filter(), {"userblock_size": 512}, DataLossError, "at byte 0: the file begins with",
    ),
    "deep": (_deep, {}, DataLossError, "the path .* is too long"),
    "long name": (_long_name, {}, DataLossError, "a name does not end"),
    "new long name": (_long_name, {"track_order": True}, DataLossError, "too long"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")  # of h5py, about long floats
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_features_raise_with_their_name(name: str, tmp_path: Path) -> None:
    fill, settings, error, message = UNSUPPORTED[name]
    path = made(tmp_path / "a.h5", fill, **settings)
    tracemalloc.start()
    with pytest.raises(error, match=message) as raised:
        arrays(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(path) in str(raised.value)
    assert peak < 2_000_000


def test_missing_and_non_hdf5_files_raise(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        arrays(tmp_path / "a.h5")
    for data in (b"", b"\x89HDF", bytes(5000), b"\x89HDF\r\n\x1a\n"):
        (tmp_path / "a.h5").write_bytes(data)
        with pytest.raises(DataLossError):
            arrays(tmp_path / "a.h5")


def test_truncated_files_of_every_length_raise(tmp_path: Path) -> None:
    path = made(tmp_path / "a.h5", lambda file: file.create_dataset("x/y", data=MATRIX))
    content = path.read_bytes()
    for size in range(0, len(content), 61):
        path.write_bytes(content[:size])
        with pytest.raises(DataLossError, match=r"should have|end of the file|begins with|follow"):
            arrays(path)


def test_overlapping_structures_cost_at_most_the_file_size(tmp_path: Path) -> None:
    """Let every group share a table of names, which would be read once for each."""

    def fill(file: h5py.File) -> None:
        for number in range(2000):
            file.create_group(f"g{number}")

    path = made(tmp_path / "a.h5", fill)
    data = bytearray(path.read_bytes())
    heaps = [pos for pos in range(0, len(data) - 8, 8) if data[pos : pos + 4] == b"HEAP"]
    for offset in heaps[1:]:  # each is as long as the rest of the file
        size, begin = len(data) - offset, offset
        data[offset + 8 : offset + 16] = size.to_bytes(8, "little")
        data[offset + 24 : offset + 32] = begin.to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(DataLossError, match="structures of the file overlap"):
        arrays(path)


def test_declared_chunks_larger_than_the_file_raise(tmp_path: Path) -> None:
    path = made(tmp_path / "a.h5", _bomb)
    data, key = bytearray(path.read_bytes()), struct.pack("<IIQ", 12, 0, 0)
    position = data.index(key)
    data[position : position + 4] = (2**31).to_bytes(4, "little")
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(DataLossError, match="1073741824 bytes, and 2147483648 are stored"):
        arrays(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize("extent", [2**63, 2**60, 2**40])
def test_oversized_empty_shapes_raise(extent: int, tmp_path: Path) -> None:
    def fill(file: h5py.File) -> None:
        file.create_dataset("x", data=np.zeros((0, 77777), "f4"))

    path = made(tmp_path / "a.h5", fill)
    data = path.read_bytes()
    assert data.count((77777).to_bytes(8, "little")) in (1, 2)  # there may be the greatest shape
    path.write_bytes(data.replace((77777).to_bytes(8, "little"), extent.to_bytes(8, "little")))
    if extent < 2**60:
        assert arrays(path)["x"].shape == (0, extent)
        return
    with pytest.raises(DataLossError, match=r"'x' has the shape \(0, "):
        arrays(path)


@pytest.mark.parametrize("settings", [{}, {"track_order": True}], ids=str)
def test_names_with_paths_raise(settings: dict[str, Any], tmp_path: Path) -> None:
    path = made(tmp_path / "a.h5", lambda file: file.create_dataset("name", data=1), **settings)
    data = path.read_bytes().replace(b"name", b"../x")
    path.write_bytes(data)
    with pytest.raises(DataLossError, match=r"'\.\./x' has a path in it|Checksum"):
        arrays(path)


def test_reading_does_not_need_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "a.h5", lambda file: file.create_dataset("x", data=MATRIX))
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert np.array_equal(arrays(path)["x"].array(), MATRIX)

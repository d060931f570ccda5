"""Keras' files: recorded ones are read to the bit, and hostile ones raise errors by name."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import struct
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from golden_files import FOLDER, array_of, cases_of
from hdf5_files import made
from thalweg._formats.keras_files import KerasFile, is_keras_file, read
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.errors import (
    DataLossError,
    InvalidConfigError,
    MissingFileError,
    UnsafeCheckpointError,
    UnsupportedCheckpointError,
)

HOME = "keras_files/cases"
CASES = cases_of(HOME)
DTYPES = {"float32": "F32", "float16": "F16", "int64": "I64", "uint16": "BF16"}
ADAM = FOLDER / "keras_files" / "adam.keras"
WEIGHTS = FOLDER / "keras_files" / "adam_weights.weights.h5"
LEGACY = FOLDER / "keras_files" / "adam.h5"


def same(tensor: StoredTensor, case: dict[str, Any], kind: str, name: str) -> bool:
    """Return whether an array has the bits, the shape and the dtype of a recorded one."""
    expected = array_of(HOME, case, kind, name)
    title = DTYPES[case["dtypes"][name]]
    bits = bytes(tensor.data) == expected.tobytes()
    return bits and (tensor.dtype, tensor.shape) == (title, expected.shape)


@pytest.fixture(scope="module", params=CASES)
def recorded_case(request: pytest.FixtureRequest) -> tuple[dict[str, Any], KerasFile]:
    case = CASES[request.param]
    return case, read(FOLDER / "keras_files" / case["file"])


# --- What Keras wrote --------------------------------------------------------------------------


def test_variables_are_read_to_the_bit(recorded_case: tuple[dict[str, Any], KerasFile]) -> None:
    case, file = recorded_case
    names = [name.removeprefix("sequential/") for name in case["variables"]]
    actual = [name.removeprefix("sequential/") for name in file.variables]
    assert actual == names
    for name, tensor in zip(case["variables"], file.variables.values(), strict=True):
        assert same(tensor, case, "value", name), name


def test_optimizers_are_read_to_the_bit(recorded_case: tuple[dict[str, Any], KerasFile]) -> None:
    case, file = recorded_case
    if case["keras"] == 2:
        expected = dict(zip(case["optimizer"], case["optimizer"]))
    elif file.kind == "h5":
        expected = {name.partition("|")[2]: name for name in case["optimizer"]}
    else:
        expected = {f"optimizer/vars/{name.partition('|')[0]}": name for name in case["optimizer"]}
    inner = "optimizer/inner_optimizer/"  # which a loss scaler repeats among its own
    actual = {name: tensor for name, tensor in file.optimizer.items() if not name.startswith(inner)}
    assert list(actual) == list(expected)
    for name, tensor in actual.items():
        assert same(tensor, case, "slot", expected[name]), name


def test_optimizers_have_class_and_configuration(
    recorded_case: tuple[dict[str, Any], KerasFile],
) -> None:
    case, file = recorded_case
    if file.kind == "weights.h5":
        assert (file.class_name, file.config) == (None, None)
        return
    name, config = file.class_name, file.config
    assert config is not None
    if case["model"] == "mixed_float16":
        assert name == "LossScaleOptimizer"
        name, config = config["inner_optimizer"]["class_name"], config["inner_optimizer"]["config"]
    assert name == case["class_name"]
    for key, value in case["arguments"].items():
        if isinstance(value, list):
            assert config[key]["class_name"] == value[0]
            assert config[key]["config"].items() >= value[1].items()
        else:
            assert np.float32(config[key]) == np.float32(value), key


def test_file_kinds_are_detected_by_content(tmp_path: Path) -> None:
    for path, kind in ((ADAM, "keras"), (WEIGHTS, "weights.h5"), (LEGACY, "h5")):
        copy = tmp_path / "model"
        copy.write_bytes(path.read_bytes())
        assert is_keras_file(copy)
        assert is_keras_file(str(copy))
        assert read(copy).kind == kind


def test_other_files_are_not_keras_files(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    assert not is_keras_file(path)
    assert not is_keras_file(tmp_path)
    for data in (b"", b"PK", b"PK\3\4", bytes(100), b"\x89HDF\r\n\x1a"):
        path.write_bytes(data)
        assert not is_keras_file(path)
        with pytest.raises(DataLossError):
            read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"")
    assert not is_keras_file(path)
    with pytest.raises(MissingFileError):
        read(tmp_path / "nothing")


def test_reading_does_not_need_keras_or_h5py(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("h5py", "keras", "tensorflow", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    for path in (ADAM, WEIGHTS, LEGACY):
        assert read(path).variables


# --- Names ---------------------------------------------------------------------------------------


def weights(path: Path, layers: dict[str, list[Any]], names: dict[str, str] | None = None) -> Path:
    """Write a file like `save_weights` of Keras 3, with numbered variables in each group."""

    def fill(file: h5py.File) -> None:
        for owner, values in layers.items():
            group = file.create_group(f"{owner}/vars" if owner else "vars")
            if owner in (names or {}):
                group.attrs["name"] = (names or {})[owner]
            for number, value in enumerate(values):
                group[str(number)] = np.float32(value)

    return made(path, fill)


NAMES: dict[str, tuple[dict[str, list[Any]], dict[str, str], list[str]]] = {
    "layers with names": (
        {"layers/dense": [1, 2], "layers/dense_1": [3]},
        {"layers/dense": "out", "layers/dense_1": "in"},
        ["out/kernel", "out/bias", "in/kernel"],
    ),
    "layers without": (
        {"layers/dense_10": [1], "layers/dense_9": [2], "layers/my_layer": [3, 4]},
        {},
        ["dense_9/kernel", "dense_10/kernel", "my_layer/0", "my_layer/1"],
    ),
    "a model in a model": (
        {"layers/functional/layers/conv2d": [1, 2], "layers/functional": []},
        {"layers/functional": "inner", "layers/functional/layers/conv2d": "c"},
        ["inner/c/kernel", "inner/c/bias"],
    ),
    "one name for two": (
        {"layers/dense": [1], "layers/dense_1": [2]},
        {"layers/dense": "same", "layers/dense_1": "same"},
        ["layers/dense/vars/0", "layers/dense_1/vars/0"],
    ),
    "cells and averages": (
        {"layers/batch_normalization": [1, 2, 3, 4], "layers/lstm/cell": [1, 2, 3]},
        {},
        [
            *(f"batch_normalization/{name}" for name in ("gamma", "beta")),
            *(f"batch_normalization/moving_{name}" for name in ("mean", "variance")),
            *(f"lstm/cell/{name}" for name in ("kernel", "recurrent_kernel", "bias")),
        ],
    ),
    "not all that it may have": (
        {"layers/batch_normalization": [1, 2, 3], "layers/embedding": [1], "layers/dense": [1] * 4},
        {},
        [
            *(f"batch_normalization/{number}" for number in range(3)),
            *(f"dense/{number}" for number in range(4)),
            "embedding/embeddings",
        ],
    ),
    "its own": ({"": [1], "encoder": [2], "optimizer": [3]}, {}, ["0", "encoder/0"]),
}


@pytest.mark.parametrize("name", NAMES)
def test_variables_have_the_names_of_layers(name: str, tmp_path: Path) -> None:
    layers, names, expected = NAMES[name]
    variables = read(weights(tmp_path / "a.weights.h5", layers, names)).variables
    assert list(variables) == expected if name != "its own" else set(variables) == set(expected)


def test_more_than_ten_variables_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    file = read(weights(tmp_path / "a.h5", {"optimizer": [*range(120)], "layers/dense": [0]}))
    assert list(file.optimizer) == [f"optimizer/vars/{number}" for number in range(120)]
    assert [tensor.array().item() for tensor in file.optimizer.values()] == [*range(120)]


def legacy(path: Path, layers: dict[str, dict[str, Any]], slots: dict[str, Any]) -> Path:
    """Write a file like Keras 2; lists of more than 40 names are cut in pieces."""

    def listed(group: Any, title: str, names: list[str]) -> None:
        pieces = [names[start : start + 40] for start in range(0, len(names), 40)]
        for number, piece in enumerate(pieces):
            texts = np.array([name.encode() for name in piece])
            group.attrs[title if len(pieces) == 1 else f"{title}{number}"] = texts

    def fill(file: h5py.File) -> None:
        model = file.create_group("model_weights")
        listed(model, "layer_names", list(layers))
        for layer, variables in layers.items():
            listed(model.create_group(layer), "weight_names", list(variables))
            for name, value in variables.items():
                model[layer][name] = np.float32(value)
        group = file.create_group("optimizer_weights")
        listed(group, "weight_names", list(slots))
        for name, value in slots.items():
            group[name] = np.float32(value)

    return made(path, fill)


def test_split_name_lists_are_joined(tmp_path: Path) -> None:
    slots = {f"Adam/w{number}/m:0": number for number in range(1000)}
    path = legacy(tmp_path / "a.h5", {"dense": {"dense/kernel:0": 1}}, slots)
    file = read(path)
    assert list(file.optimizer) == [f"Adam/w{number}/m" for number in range(1000)]
    assert file.optimizer["Adam/w777/m"].array() == 777
    assert (file.class_name, file.config) == (None, None)


def test_layers_distinguish_variables_of_equal_name(tmp_path: Path) -> None:
    layers = {"b": {"kernel:0": 1}, "a": {"kernel:0": 2, "bias:0": 3}}
    variables = read(legacy(tmp_path / "a.h5", layers, {"iter:0": 0})).variables
    assert list(variables) == ["b/kernel", "a/kernel", "a/bias"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.__delitem__("optimizer_weights/x:0"), "optimizer_weights/x:0 is listed"),
        (lambda file: file["optimizer_weights"].attrs.pop("weight_names"), "has no 'weight_names'"),
        (
            lambda file: file["optimizer_weights"].attrs.update(
                {"weight_names": np.array([b"x:0", b"x:0"])}
            ),
            "lists 'x:0' twice",
        ),
        (
            lambda file: file["optimizer_weights"].attrs.update({"weight_names": [b"\xff"]}),
            "lists b",
        ),
        (
            lambda file: file["model_weights"].attrs.update({"layer_names": [b"dense/dense"]}),
            "is no group|has no 'weight_names'",
        ),
    ],
)
def test_inconsistent_lists_raise(change: Any, message: str, tmp_path: Path) -> None:
    path = legacy(tmp_path / "a.h5", {"dense": {"dense/kernel:0": 1}}, {"x:0": 0})
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(DataLossError, match=message):
        read(path)


def test_optimizers_with_a_numbering_gap_raise(tmp_path: Path) -> None:
    path = weights(tmp_path / "a.h5", {"optimizer": [1, 2, 3], "layers/dense": [1]})
    with h5py.File(path, "a") as file:
        del file["optimizer/vars/1"]
    with pytest.raises(DataLossError, match="optimizer/vars/1 is missing"):
        read(path)


def test_hdf5_files_of_other_programs_raise(tmp_path: Path) -> None:
    path = made(tmp_path / "a.h5", lambda file: file.create_dataset("data/x", data=1.0))
    with pytest.raises(UnsupportedCheckpointError, match="not one of Keras: 'data/x' is in no"):
        read(path)
    with pytest.raises(UnsupportedCheckpointError, match="an HDF5 file without variables"):
        read(made(tmp_path / "b.h5", lambda file: None))


# --- Archives ------------------------------------------------------------------------------------

Change = Callable[[zipfile.ZipFile, dict[str, bytes]], None]


def archive(path: Path, change: Change | None = None, **options: Any) -> Path:
    """Write the file of Adam again; `change` may write or alter members before."""
    with zipfile.ZipFile(ADAM) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", **options) as new:
        if change is not None:
            change(new, members)
        for name, data in members.items():
            new.writestr(name, data)
    return path


def test_archives_of_other_zip_writers_are_read(tmp_path: Path) -> None:
    expected = {name: bytes(tensor.data) for name, tensor in read(ADAM).optimizer.items()}
    for number, options in enumerate(({}, {"compression": zipfile.ZIP_DEFLATED})):
        path = archive(tmp_path / f"{number}.keras", **options)
        assert {name: bytes(part.data) for name, part in read(path).optimizer.items()} == expected
    large = tmp_path / "large.keras"

    def wide(new: zipfile.ZipFile, members: dict[str, bytes]) -> None:
        for name in list(members):
            with new.open(name, "w", force_zip64=True) as member:
                member.write(members.pop(name))

    slots = read(archive(large, wide)).optimizer
    assert {name: bytes(tensor.data) for name, tensor in slots.items()} == expected


def _named(name: str) -> Change:
    return lambda new, _: new.writestr(name, b"x")


def _bomb(new: zipfile.ZipFile, members: dict[str, bytes]) -> None:
    info = zipfile.ZipInfo("model.weights.h5")
    info.compress_type = zipfile.ZIP_DEFLATED
    new.writestr(info, bytes(50_000_000))
    del members["model.weights.h5"]


def _nested(new: zipfile.ZipFile, members: dict[str, bytes]) -> None:
    members["model.weights.h5"] = ADAM.read_bytes()


def _without(name: str, new_name: str = "") -> Change:
    def change(new: zipfile.ZipFile, members: dict[str, bytes]) -> None:
        del members[name]
        if new_name:
            members[new_name] = b"x"

    return change


def _method(kind: int) -> Change:
    def change(new: zipfile.ZipFile, members: dict[str, bytes]) -> None:
        new.writestr("config.json", members.pop("config.json"), compress_type=kind)

    return change


def _twice(new: zipfile.ZipFile, members: dict[str, bytes]) -> None:
    new.writestr("a", b"")
    with pytest.warns(UserWarning, match="Duplicate"):
        new.writestr("a", b"")


HOSTILE: dict[str, tuple[Change, type[Exception], str]] = {
    "absolute": (_named("/etc/cron.d/x"), UnsafeCheckpointError, "'/etc/cron.d/x' would leave"),
    "above": (_named("../x"), UnsafeCheckpointError, "the member '../x' would leave the folder"),
    "in between": (_named("assets/../../x"), UnsafeCheckpointError, "would leave the folder"),
    "backslashes": (_named("..\\x"), UnsafeCheckpointError, "would leave the folder"),
    "a drive": (_named("C:x"), UnsafeCheckpointError, "would leave the folder"),
    "bomb": (_bomb, DataLossError, "bytes that become 50000000, more than 100 times as many"),
    "nested": (_nested, DataLossError, "model.weights.h5: at byte 0: the file begins with b'PK"),
    "twice": (_twice, DataLossError, "the member 'a' is there twice"),
    "no weights": (
        _without("model.weights.h5"), DataLossError, "the archive has no 'model.weights.h5'",
    ),
    "no description": (_without("config.json"), DataLossError, "the archive has no 'config.json'"),
    "arrays of NumPy": (
        _without("model.weights.h5", "model.weights.npz"), UnsupportedCheckpointError,
        "weights in 'model.weights.npz' are not read",
    ),
    "bzip2": (
        _method(zipfile.ZIP_BZIP2), UnsupportedCheckpointError, "compressed by method 12",
    ),
    "lzma": (_method(zipfile.ZIP_LZMA), UnsupportedCheckpointError, "compressed by method 14"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_raise(name: str, tmp_path: Path) -> None:
    change, error, message = HOSTILE[name]
    path = archive(tmp_path / "a.keras", change)
    with measured(), pytest.raises(error, match=message.replace("(", r"\(")):
        read(path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.keras"]


@contextlib.contextmanager
def measured(limit: int = 5_000_000) -> Iterator[None]:
    """Assert that the block allocates no more than so many bytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def patched(path: Path, signature: bytes, offset: int, value: bytes, from_end: bool = True) -> None:
    """Change bytes at an offset from a signature."""
    data = bytearray(path.read_bytes())
    position = (data.rindex(signature) if from_end else data.index(signature)) + offset
    data[position : position + len(value)] = value
    path.write_bytes(data)


CENTRAL, LOCAL, END = b"PK\1\2", b"PK\3\4", b"PK\5\6"
PATCHES: dict[str, tuple[bytes, int, bytes, type[Exception], str]] = {
    "encrypted": (CENTRAL, 8, b"\1\0", UnsupportedCheckpointError, "is encrypted"),
    "checksum": (CENTRAL, 16, b"\0\0\0\0", DataLossError, "Checksum does not match: stored 0 vs."),
    "size": (CENTRAL, 24, b"\1\0\0\0", DataLossError, "bytes and should have 1"),
    "place": (CENTRAL, 42, b"\1\0\0\0", DataLossError, "begins with"),
    "far place": (CENTRAL, 42, b"\0\0\0\x7f", DataLossError, "goes beyond the end of the file"),
    "another name": (LOCAL, 30, b"x", DataLossError, "has another name here"),
    "count": (END, 8, b"\1\0\1\0", DataLossError, "more members than the archive says"),
    "disks": (END, 4, b"\1\0", DataLossError, "the end of the archive is not Keras'"),
    "comment": (END, 20, b"\1\0", DataLossError, "the end of the archive is not Keras'"),
    "many": (END, 8, b"\xff\xff\xff\xff", DataLossError, "the end of a large archive"),
    "list": (END, 12, b"\xff\xff\xff\x7f", DataLossError, "goes beyond the end of the file"),
}


@pytest.mark.parametrize("name", PATCHES)
def test_damaged_archives_raise(name: str, tmp_path: Path) -> None:
    signature, offset, value, error, message = PATCHES[name]
    path = archive(tmp_path / "a.keras")
    patched(path, signature, offset, value)
    with pytest.raises(error, match=message):
        read(path)


def test_flipped_weight_bytes_raise(tmp_path: Path) -> None:
    path, content = tmp_path / "a.keras", ADAM.read_bytes()
    begin = content.index(b"\x89HDF")
    for position in range(begin, begin + 18_000, 997):
        data = bytearray(content)
        data[position] ^= 4
        path.write_bytes(data)
        with pytest.raises(DataLossError, match=r"'model\.weights\.h5': Checksum does not match"):
            read(path)


def test_truncated_archive_raises(tmp_path: Path) -> None:
    path, content = tmp_path / "a.keras", ADAM.read_bytes()
    for size in [*range(0, len(content), 499), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(DataLossError):
            read(path)
        assert not is_keras_file(path)


@pytest.mark.parametrize("count", [65_537, 10**6])
def test_archives_with_too_many_members_raise_before_listing(count: int, tmp_path: Path) -> None:
    path = tmp_path / "a.keras"
    entry = b"PK\1\2" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"a"
    entries = entry * count
    end = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, len(entries), 4)
    locator = b"PK\6\7" + struct.pack("<IQI", 0, 4 + len(entries), 1)
    small = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    path.write_bytes(b"PK\3\4" + entries + end + locator + small)
    with measured(100_000), pytest.raises(DataLossError, match=f"{count} members, and 65536 are"):
        read(path)


# --- Descriptions --------------------------------------------------------------------------------


def optimizer(value: Any) -> bytes:
    return json.dumps({"compile_config": {"optimizer": value}}).encode()


class Canary:
    """Object that creates a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("canary",)


TEXTS: dict[str, bytes] = {
    "deep": b'{"a":' * 300_000 + b"1" + b"}" * 300_000,
    "keys that are there twice": b'{"a": {}, "a": {}}',
    "NaN": b'{"a": NaN}',
    "a number beyond all": b'{"a": 1e400}',
    "a long number": b'{"a": ' + b"1" * 100_000 + b"}",
    "no JSON": b"no JSON",
    "nothing": b"",
    "no text": b"\xff\xfe\xff",
    "a list": b"[]",
    "pickled": pickle.dumps(Canary()),
}
OPTIMIZERS: dict[str, Any] = {
    "a path": {"class_name": "os.system", "config": {}},
    "a path alone": "posix.system",
    "a call": {"class_name": "__import__('os').system('true')", "config": {}},
    "no class": {"config": {}},
    "a number as class": {"class_name": 1, "config": {}},
    "a list as configuration": {"class_name": "Adam", "config": [1]},
    "a number": 7,
}


def in_archive(path: Path, text: bytes) -> Path:
    """Write a file of Keras 3 with this description."""

    def change(new: zipfile.ZipFile, members: dict[str, bytes]) -> None:
        members["config.json"] = text

    return archive(path, change)


def in_attribute(path: Path, text: bytes) -> Path:
    """Write a file of Keras 2 with this description."""

    def fill(file: h5py.File) -> None:
        length = len(text) if 0 < len(text) < 60_000 else None
        kind = h5py.string_dtype(length=length)
        file.attrs.create("training_config", text, dtype=kind)
        file.create_group("model_weights").attrs["layer_names"] = np.array([])

    return made(path, fill)


@pytest.fixture
def untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Assert that nothing was imported, and no file created but the two."""
    monkeypatch.chdir(tmp_path)
    modules = set(sys.modules)
    yield
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.keras", "b.h5"]
    assert set(sys.modules) == modules


@pytest.mark.one_in(3)
@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", TEXTS)
def test_hostile_descriptions_raise(name: str, tmp_path: Path) -> None:
    for writer, title in ((in_archive, "a.keras"), (in_attribute, "b.h5")):
        path = writer(tmp_path / title, TEXTS[name])
        with pytest.raises(InvalidConfigError, match=title):
            read(path)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_invalid_descriptions_of_optimizers_raise(name: str, tmp_path: Path) -> None:
    description = OPTIMIZERS[name]
    new = in_archive(tmp_path / "a.keras", optimizer(description))
    old = in_attribute(tmp_path / "b.h5", json.dumps({"optimizer_config": description}).encode())
    for path in (new, old):
        with pytest.raises(InvalidConfigError, match="the optimizer"):
            read(path)


def test_the_class_of_an_optimizer_is_only_a_name(tmp_path: Path) -> None:
    config = {"class_name": "Custom>MyOwn", "config": {"module": "os", "a": [1, None]}}
    file = read(in_archive(tmp_path / "a.keras", optimizer(config)))
    assert (file.class_name, file.config) == ("Custom>MyOwn", {"module": "os", "a": [1, None]})


def test_models_that_were_not_compiled_have_no_optimizer(tmp_path: Path) -> None:
    file = read(in_archive(tmp_path / "a.keras", b'{"compile_config": null}'))
    assert (file.class_name, file.config) == (None, None)
    assert file.optimizer


def test_models_have_the_order_and_the_names_of_their_description(tmp_path: Path) -> None:
    groups = ("conv2d", "dense", "dense_1")
    layers = {f"layers/{name}": [number] for number, name in enumerate(groups, 1)}
    inner = weights(tmp_path / "w.h5", layers).read_bytes()
    kinds = {"in": "InputLayer", "last": "Dense", "conv2d": "Conv2D", "dense": "Dense"}
    config = {
        "config": {
            "layers": [
                {"class_name": kind, "config": {"name": name}} for name, kind in kinds.items()
            ]
        }
    }

    def change(new: zipfile.ZipFile, members: dict[str, bytes]) -> None:
        members["config.json"] = json.dumps(config).encode()
        members["model.weights.h5"] = inner

    variables = read(archive(tmp_path / "a.keras", change)).variables
    assert {name: tensor.array().item() for name, tensor in variables.items()} == {
        "last/kernel": 2, "conv2d/kernel": 1, "dense/kernel": 3,
    }  # fmt: skip
    assert list(variables) == ["last/kernel", "conv2d/kernel", "dense/kernel"]


def test_metric_totals_are_left_out(tmp_path: Path) -> None:
    path = weights(tmp_path / "a.h5", {"layers/dense": [1], "metrics/mean": [2, 3]})
    assert list(read(path).variables) == ["dense/kernel"]

"""Bundles of TensorFlow are read to the bit, and written again to the byte."""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bundle_examples
from bundle_files import BUNDLES, DATA, GOLDENS
from thalweg._formats import bundle
from thalweg._formats.bundle.object_graph import KEY
from thalweg.errors import UnsupportedCheckpointError

SAMPLES = sorted(path.with_suffix("") for path in GOLDENS.glob("ckpt_v*/*/*.index"))
RECORD: dict[str, Any] = json.loads((BUNDLES / "values.json").read_text())["recorded"]
READ = [
    "boxes",
    "dtypes",
    "names",
    "partitioned",
    "sharded",
    "sharded_object",
    "strings",
    "version_1",
]


def title(prefix: Path) -> str:
    return f"{prefix.parent.parent.name}/{prefix.parent.name}"


@pytest.mark.parametrize("prefix", SAMPLES, ids=title)
def test_samples_are_read_to_the_bit(prefix: Path) -> None:
    contents = bundle.read(prefix)
    with np.load(prefix.parent / "values.npz") as file:
        expected = {key[6:]: file[key] for key in file if key.startswith("value|")}
    assert contents.tensors.keys() == expected.keys()
    for name, expected_array in expected.items():
        array = contents.tensors[name].array()
        assert (array.dtype, array.shape) == (expected_array.dtype, expected_array.shape), name
        assert array.tobytes() == expected_array.tobytes(), name
        tensor = contents.tensors[name].tensor()
        assert tensor.numpy().tobytes() == expected_array.tobytes(), name
    assert (contents.graph is None) == (prefix.name == "model.ckpt-5")
    assert not contents.strings


@pytest.mark.parametrize("prefix", SAMPLES, ids=title)
def test_samples_are_written_as_tensorflow_wrote_them(prefix: Path, tmp_path: Path) -> None:
    contents = bundle.read(prefix)
    bundle.write(tmp_path / "again", contents.tensors, contents.graph)
    for suffix in (".index", DATA):
        content = (tmp_path / f"again{suffix}").read_bytes()
        assert content == Path(f"{prefix}{suffix}").read_bytes(), suffix


@pytest.mark.parametrize("name", READ)
def test_recorded_bundles_are_read_to_the_bit(name: str) -> None:
    loaded = bundle.read(BUNDLES / name / "model.ckpt")
    expected = dict(RECORD[name]["tensors"])
    assert (KEY in expected) == (loaded.graph is not None)
    expected.pop(KEY, None)
    strings = {key: value[2] for key, value in expected.items() if value[0] == "string"}
    assert {key: [text.hex() for text in value] for key, value in loaded.strings.items()} == strings
    tensors = {key: value for key, value in expected.items() if key not in strings}
    assert {
        key: bundle_examples.describe_tensor(array) for key, array in loaded.tensors.items()
    } == tensors
    entries = {entry.name: entry for entry in bundle.describe(BUNDLES / name / "model.ckpt")}
    assert entries.keys() == RECORD[name]["tensors"].keys()
    for key, tensor in loaded.tensors.items():
        assert (entries[key].dtype, entries[key].shape) == (tensor.dtype, tensor.shape)
        assert entries[key].bytes == tensor.data.nbytes
    assert {key for key, entry in entries.items() if entry.dtype == "string"} - {KEY} == set(
        strings
    )


def test_a_bundle_of_many_names_is_read_and_written_alike(tmp_path: Path) -> None:
    for path in (BUNDLES / "many").iterdir():
        (tmp_path / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    prefix = tmp_path / "model.ckpt"
    contents = bundle.read(prefix)
    lines = [f"{name} {tensor.data.hex()}\n" for name, tensor in contents.tensors.items()]
    summary = RECORD["many"]
    assert len(lines) == summary["count"]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert digest == summary["sha256 of 'name hex' in lines"]
    bundle.write(tmp_path / "again", contents.tensors)
    index = (tmp_path / "model.ckpt.index").read_bytes()
    assert len(index) > 2 << 18  # several blocks
    assert (tmp_path / "again.index").read_bytes() == index
    assert (tmp_path / f"again{DATA}").read_bytes() == Path(f"{prefix}{DATA}").read_bytes()


def test_states_of_iterators_are_skipped_and_named() -> None:
    prefix = BUNDLES / "variant" / "model.ckpt"
    name = "data/.ATTRIBUTES/ITERATOR_STATE"
    dtypes = {entry.name: entry.dtype for entry in bundle.describe(prefix)}
    assert dtypes[name] == "variant"
    with pytest.raises(UnsupportedCheckpointError, match=rf"{name}' \(variant\)"):
        bundle.read(prefix, {name})
    key = "w/.ATTRIBUTES/VARIABLE_VALUE"
    for names, variants in ((None, (name,)), (dtypes.keys() - {name}, ())):
        contents = bundle.read(prefix, names)
        assert contents.variants == variants
        assert (
            bundle_examples.describe_tensor(contents.tensors[key])
            == RECORD["variant"]["tensors"][key]
        )


@pytest.mark.parametrize("name", ["ours", "ours_object"])
def test_written_files_are_those_that_tensorflow_restored(name: str, tmp_path: Path) -> None:
    # tools/record_bundles.py --restore had TensorFlow 2.21 restore these files.
    bundle_examples.write(tmp_path)
    document = json.loads((BUNDLES / name / "values.json").read_text())
    assert bundle_examples.digests(BUNDLES / name) == document["sha256"]
    assert bundle_examples.digests(tmp_path / name) == document["sha256"]
    contents = bundle.read(BUNDLES / name / "model.ckpt")
    assert {
        key: bundle_examples.describe_tensor(tensor) for key, tensor in contents.tensors.items()
    } == {key: document["tensors"][key] for key in sorted(document["tensors"])}
    assert contents.graph == (bundle_examples.as_objects()[1] if name == "ours_object" else None)

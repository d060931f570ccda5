"""String variables in object checkpoints are skipped, and named."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

import thalweg
from bundle_files import entry, write
from thalweg import v1
from thalweg._formats.bundle import Node, ObjectGraph, SavedAttribute, object_graph
from thalweg._formats.bundle.tensors import encoded_strings
from thalweg._formats.checksum import mask_checksum
from thalweg.checkpoint import inspection, restore, tensorflow
from thalweg.errors import DataLossError, UnsupportedCheckpointError

SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
STRING = 7  # DT_STRING


VARIANT = 21  # DT_VARIANT


def write_checkpoint(
    folder: Path, shape: tuple[int, ...], names: tuple[str, ...], dtype: int = STRING
) -> Path:
    """Write an object checkpoint with a variable "w", a string "note", and nodes of these names."""
    nodes = [Node(children={name: place for place, name in enumerate(names, 1)})]
    nodes += [
        Node(attributes=(SavedAttribute("VARIABLE_VALUE", name, name + SUFFIX),)) for name in names
    ]
    weights = struct.pack("<2f", 1.0, 2.0)
    texts, checksum = encoded_strings([b"hello"] * torch.Size(shape).numel())
    graph, graph_checksum = encoded_strings([object_graph.encode_graph(ObjectGraph(tuple(nodes)))])
    texts_by_key = {
        b"_CHECKPOINTABLE_OBJECT_GRAPH": (graph, STRING, (), graph_checksum),
        f"note{SUFFIX}".encode(): (texts, dtype, shape, checksum),
    }
    entries, data = {f"w{SUFFIX}".encode(): entry(weights)}, weights
    for key, (value, kind, dims, value_checksum) in texts_by_key.items():
        entries[key] = entry(value, len(data), kind, dims, checksum=mask_checksum(value_checksum))
        data += value
    return write(folder / "ckpt", entries, data)


@pytest.mark.parametrize("shape", [(), (2,), (0,)], ids=str)
@pytest.mark.parametrize("names", [("w", "note"), ("note", "w")], ids=str)
@pytest.mark.parametrize("dtype", [STRING, VARIANT])
def test_strings_and_variants_are_skipped_by_name(
    shape: tuple[int, ...], names: tuple[str, ...], dtype: int, tmp_path: Path
) -> None:
    path = write_checkpoint(tmp_path, shape, names, dtype)
    file = tensorflow.load(path)
    assert ([*file.variables], file.texts) == (["w"], (f"note{SUFFIX}",))
    assert f"unknown: note{SUFFIX}" in file.summary()
    w = thalweg.Variable(torch.zeros(2), "w")
    assert tensorflow.restore(path, {"w": w}) is None
    assert w.tolist() == [1, 2]
    assert tensorflow.convert(path, tmp_path / "out") == (f"note{SUFFIX}",)
    w.data.zero_()
    restore(tmp_path / "out", variables={"w": w})
    assert w.tolist() == [1, 2]
    listing = inspection.list_file(path)
    assert [(tensor.name, tensor.shape) for tensor in listing.tensors][1:] == [
        (f"note{SUFFIX}", shape), (f"w{SUFFIX}", (2,)),
    ]  # fmt: skip
    assert not any("cannot be told" in line for line in listing.optimizers)
    assert [name for name, _ in v1.train.list_variables(str(path))][1:] == [
        f"note{SUFFIX}", f"w{SUFFIX}",
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [STRING, VARIANT])
def test_object_checkpoint_restores_tensors_beside_strings(dtype: int, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, (), ("w", "note"), dtype)
    w = thalweg.Variable(torch.zeros(2), "w")
    v1.train.Checkpoint(w=w).restore(str(path)).assert_consumed()
    assert w.tolist() == [1, 2]


def test_requested_variant_raises(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, (), ("w", "note"), VARIANT)
    with pytest.raises(UnsupportedCheckpointError, match=f"note{SUFFIX}' .variant.*not read"):
        tensorflow.load(path, names={f"note{SUFFIX}"})


def test_missing_values_raise_data_loss(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, (), ("w", "note", "gone"))
    w = thalweg.Variable(torch.zeros(2), "w")
    message = f"names 'gone{SUFFIX}', which has no value"
    with pytest.raises(DataLossError, match=message):
        tensorflow.load(path)
    with pytest.raises(DataLossError, match=message):
        v1.train.Checkpoint(w=w).restore(str(path))

"""Graphs of objects: those of the samples as text, and those with one thing wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundle_files import GOLDENS, write
from thalweg._formats import bundle
from thalweg._formats.bundle import Node, ObjectGraph, SavedAttribute
from thalweg._formats.bundle.messages import BundleEntry
from thalweg._formats.bundle.object_graph import KEY, encode_graph
from thalweg._formats.bundle.proto import bytes_field, number_field, string_field
from thalweg._formats.bundle.tensors import encoded_strings
from thalweg._formats.checksum import mask_checksum
from thalweg.errors import DataLossError

VALUE = ".ATTRIBUTES/VARIABLE_VALUE"


def put(folder: Path, *texts: bytes) -> Path:
    """Write a bundle with this graph."""
    data, checksum = encoded_strings(texts)
    shape = () if len(texts) == 1 else (len(texts),)
    return write(
        folder / "ckpt",
        {KEY.encode(): BundleEntry(7, shape, 0, 0, len(data), mask_checksum(checksum))},
        data,
    )


def test_sample_object_graph_is_described() -> None:
    graph = bundle.read(GOLDENS / "ckpt_v1" / "adam_object" / "model.ckpt").graph
    assert graph is not None
    assert dict(graph.nodes[0].children) == {"model": 1, "optimizer": 2, "step": 3}
    step = SavedAttribute("VARIABLE_VALUE", "global_step", f"step/{VALUE}")
    assert graph.nodes[3] == Node({}, (step,))
    optimizer = graph.nodes[2]
    slots = {(slot.original, slot.name): graph.nodes[slot.slot] for slot in optimizer.slots}
    kernel = graph.nodes[graph.nodes[1].children["layer_with_weights-0"]].children["kernel"]
    assert slots[kernel, "v"].attributes == (
        SavedAttribute(
            "VARIABLE_VALUE",
            "layer1/kernel/Adam_1",
            f"model/layer_with_weights-0/kernel/.OPTIMIZER_SLOT/optimizer/v/{VALUE}",
        ),
    )
    assert len(slots) == 8


def node(*fields: bytes) -> bytes:
    return bytes_field(1, b"".join(fields))


def child(place: int, name: str) -> bytes:
    return bytes_field(1, number_field(1, place) + string_field(2, name))


WRONG: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "it has no objects"),
    "no message": (b"\x0a\x05", "field 1 is cut off"),
    "no messages inside": (node(b"\x0a\x05"), "object 0: field 1 is cut off"),
    "child beyond": (node(child(1, "a")), "object 0: it names object 1 of 1"),
    "negative child": (node(child(-1, "a")), "object 0: it names object -1 of 1"),
    "child twice": (node(child(0, "a"), child(0, "a")), "object 0: it has 'a' twice"),
    "slot beyond": (
        node()
        + node(bytes_field(3, number_field(1, 1) + string_field(2, "m") + number_field(3, 2))),
        "object 1: it names object 2 of 2",
    ),
    "variable beyond": (
        node() + node(bytes_field(3, number_field(1, 7) + string_field(2, "m"))),
        "object 1: it names object 7 of 2",
    ),
    "no text": (node(bytes_field(1, bytes_field(2, b"\xff"))), r"object 0: b'\\xff' is no UTF-8"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_object_graph_raises(name: str, tmp_path: Path) -> None:
    data, words = WRONG[name]
    with pytest.raises(DataLossError, match=f"'{KEY}': {words}"):
        bundle.read(put(tmp_path, data))


def test_duplicate_object_graph_string_raises(tmp_path: Path) -> None:
    graph = encode_graph(ObjectGraph((Node(),)))
    assert bundle.read(put(tmp_path, graph)).graph == ObjectGraph((Node(),))
    with pytest.raises(DataLossError, match=f"'{KEY}': it has 2 strings"):
        bundle.read(put(tmp_path, graph, graph))


def test_cyclic_object_graph_is_read(tmp_path: Path) -> None:
    cycle = ObjectGraph((Node({"next": 1, "self": 0}), Node({"back": 0})))
    assert bundle.read(put(tmp_path, encode_graph(cycle))).graph == cycle


def test_object_graph_is_read_with_any_selection() -> None:
    contents = bundle.read(GOLDENS / "ckpt_v2" / "adam" / "model.ckpt", ())
    assert contents.tensors == {}
    assert contents.graph is not None

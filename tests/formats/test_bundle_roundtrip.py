"""Bundles are read back to the bit, for all names, shapes and dtypes."""

from __future__ import annotations

import gc
import math
import os
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bundle_files import DATA, small
from thalweg._formats import bundle, stored_tensor
from thalweg._formats.bundle import Node, ObjectGraph, SavedAttribute, SlotVariable, proto, slices
from thalweg._formats.bundle.contents import DTYPES
from thalweg._formats.bundle.object_graph import KEY
from thalweg._formats.bundle.table import encoded_table, iterate_entries
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor
from thalweg.errors import (
    CheckpointWriteError,
    InvalidArgumentError,
    UnsupportedCheckpointError,
)

SHARED_FIXTURES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
CHARACTERS = st.characters(codec="utf-8")
NAMES = st.text(CHARACTERS, min_size=1).filter(lambda name: name[0] != "\0" and name != KEY)
SHAPES = st.lists(st.integers(0, 4), max_size=5).map(tuple)


@pytest.fixture(autouse=True)
def _nothing_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


KINDS = st.sampled_from(sorted(DTYPES))


@cache
def contents(size: int) -> Any:  # a strategy takes longer to make than to draw from
    return st.binary(min_size=size, max_size=size)


@st.composite
def tensors(draw: Any) -> StoredTensor:
    dtype, shape = draw(KINDS), draw(SHAPES)
    data = draw(contents(math.prod(shape) * ITEM_BYTES[dtype]))
    return StoredTensor(
        dtype, shape, memoryview(bytes(b & 1 for b in data) if dtype == "BOOL" else data)
    )


def shown(tensors: dict[str, StoredTensor]) -> dict[str, Any]:
    return {name: (part.dtype, part.shape, bytes(part.data)) for name, part in tensors.items()}


@SHARED_FIXTURES
@given(st.dictionaries(NAMES, tensors(), max_size=8))
def test_tensors_round_trip(tmp_path: Path, given_tensors: dict[str, StoredTensor]) -> None:
    bundle.write(tmp_path / "ckpt", given_tensors)
    contents = bundle.read(tmp_path / "ckpt")
    assert shown(contents.tensors) == shown(given_tensors)
    assert list(contents.tensors) == sorted(given_tensors, key=str.encode)
    assert (contents.graph, contents.strings) == (None, {})
    assert bundle.is_bundle(tmp_path / "ckpt")
    for tensor in contents.tensors.values():
        assert tensor.tensor().shape == tensor.shape  # every dtype is one of torch, too


@given(st.dictionaries(st.binary(max_size=12), st.binary(max_size=6), max_size=60))
def test_tables_round_trip(items: dict[bytes, bytes]) -> None:
    data = encoded_table(sorted(items.items()))
    assert (
        dict(iterate_entries(lambda offset, size: data[offset : offset + size], len(data))) == items
    )


@given(st.integers(-(2**63), 2**64 - 1))
def test_varints_round_trip(value: int) -> None:
    data = proto.encode_varint(value)
    assert proto.read_varint(data, 0, len(data)) == (value % 2**64, len(data))
    message = proto.ProtoMessage(proto.number_field(3, value), {3: proto.VARINT})
    assert message.number(3) == value % 2**64
    assert message.signed(3) == (value if value < 2**63 else value - 2**64)


LENGTHS = st.integers(-(2**63), 2**63 - 1)
KEYS = st.tuples(st.text(CHARACTERS), st.lists(st.tuples(LENGTHS, LENGTHS), max_size=3))


@given(KEYS, KEYS)
def test_slice_keys_sort_as_name_and_extents(first: Any, second: Any) -> None:
    def rank(name: str, extents: Any) -> Any:
        return name.encode(), len(extents), extents

    keys = [slices.key_of(*pair) for pair in (first, second)]
    assert (keys[0] < keys[1]) == (rank(*first) < rank(*second))
    assert (keys[0] == keys[1]) == (rank(*first) == rank(*second))


@cache
def nodes(count: int) -> Any:
    """Draw a node of a graph of `count` nodes."""
    ids, text = st.integers(0, count - 1), st.text(CHARACTERS, max_size=5)
    values = st.builds(SavedAttribute, text, text, text)
    slots = st.builds(SlotVariable, ids, text, ids)
    tuples = [st.lists(element, max_size=3).map(tuple) for element in (values, slots)]
    return st.builds(Node, st.dictionaries(text, ids, max_size=4), *tuples)


COUNTS = st.integers(1, 6)


@st.composite
def graphs(draw: Any) -> ObjectGraph:
    count = draw(COUNTS)
    return ObjectGraph(tuple(draw(nodes(count)) for _ in range(count)))


@SHARED_FIXTURES
@given(graphs())
def test_object_graphs_round_trip(tmp_path: Path, graph: ObjectGraph) -> None:
    bundle.write(tmp_path / "ckpt", {}, graph)
    assert bundle.read(tmp_path / "ckpt").graph == graph
    assert [entry.name for entry in bundle.describe(tmp_path / "ckpt")] == [KEY]


def test_read_tensors_have_separate_writable_memory(tmp_path: Path) -> None:
    prefix = small(tmp_path / "ckpt")
    first, second = (bundle.read(prefix).tensors["dec/bias"] for _ in range(2))
    tensor = first.tensor()
    tensor += 1
    assert first.array().tolist() == [1, 2, 3]
    assert second.array().tolist() == [0, 1, 2]


def test_progress_goes_from_zero_to_total(tmp_path: Path) -> None:
    def watched() -> tuple[list[tuple[int, int]], Any]:
        calls: list[tuple[int, int]] = []
        return calls, lambda *numbers: calls.append(numbers)

    tensors = {name: stored_tensor.of_tensor(torch.ones(5)) for name in "abc"}
    calls, progress = watched()
    bundle.write(tmp_path / "ckpt", tensors, progress=progress)
    assert calls[-1] == (60, 60)
    assert sorted(calls) == calls
    calls, progress = watched()
    bundle.read(tmp_path / "ckpt", progress=progress)
    assert calls == [(20, 60), (40, 60), (60, 60)]
    calls, progress = watched()
    bundle.read(tmp_path / "ckpt", ["b"], progress)
    assert calls == [(20, 20)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "No tensor can be named ''"),
        ("\0a", r"No tensor can be named '\\x00a'"),
        (KEY, f"No tensor can be named '{KEY}'"),
        ("a\ud800", r"The name 'a\\ud800' is no Unicode"),
    ],
)
def test_reserved_names_raise(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        bundle.write(tmp_path / "ckpt", {name: stored_tensor.of_tensor(torch.ones(1))})
    assert not os.listdir(tmp_path)


def test_unsupported_tensors_raise(tmp_path: Path) -> None:
    cases = {
        "has 3 bytes, F32 of shape \\(1,\\) has 4": StoredTensor("F32", (1,), memoryview(b"abc")),
        "has 300 axes": StoredTensor("U8", (1,) * 300, memoryview(b"a")),
    }
    for words, tensor in cases.items():
        with pytest.raises(InvalidArgumentError, match=f"'w' {words}"):
            bundle.write(tmp_path / "ckpt", {"w": tensor})
    with pytest.raises(UnsupportedCheckpointError, match="'w' is F8_E8M0, which checkpoints"):
        bundle.write(tmp_path / "ckpt", {"w": StoredTensor("F8_E8M0", (1,), memoryview(b"a"))})
    assert not os.listdir(tmp_path)


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointWriteError, match=f"{DATA}: No such file or directory"):
        bundle.write(tmp_path / "none" / "ckpt", {"w": stored_tensor.of_tensor(torch.ones(1))})


def test_reading_allocates_only_the_tensors(tmp_path: Path) -> None:
    tensors = {f"w{place}": stored_tensor.of_tensor(torch.ones(1 << 18)) for place in range(4)}
    bundle.write(tmp_path / "ckpt", tensors)
    bundle.read(tmp_path / "ckpt")
    gc.collect()
    tracemalloc.start()
    try:
        contents = bundle.read(tmp_path / "ckpt")
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = sum(tensor.data.nbytes for tensor in contents.tensors.values())
    assert size <= current <= peak < size + 200_000

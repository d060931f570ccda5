"""The library's files: written tensors are read to the bit, also by safetensors."""

from __future__ import annotations

import os
import random
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import storage_files
from storage_files import DOCUMENT, a_few, counting_tensor, have_equal_contents
from thalweg._formats import container
from thalweg._formats.container import Contents
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor, of_tensor
from thalweg.errors import (
    DataLossError,
    InvalidArgumentError,
    InvalidTypeError,
    MissingFileError,
    UnsupportedCheckpointError,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "ckpt"
    container.write(target, a_few(), DOCUMENT)
    return target


def test_files_round_trip(path: Path) -> None:
    assert have_equal_contents(container.read(path), Contents(DOCUMENT, a_few()))


def test_a_file_without_tensors_holds_its_document(tmp_path: Path) -> None:
    container.write(tmp_path / "a", {}, {})
    assert have_equal_contents(container.read(tmp_path / "a"), Contents({}, {}))


def test_safetensors_package_reads_the_file(path: Path) -> None:
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        for name, tensor in a_few().items():
            actual = file.get_tensor(name)
            assert torch.equal(actual, tensor.tensor())
            assert actual.dtype == tensor.tensor().dtype
    assert (metadata["format"], metadata["version"]) == ("thalweg", "1")


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_every_dtype_goes_both_ways(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    expected = counting_tensor(dtype, shape)
    tensor = expected.tensor()
    assert tuple(tensor.shape) == shape
    container.write(tmp_path / "a", {"x": of_tensor(tensor)}, {})
    actual = container.read(tmp_path / "a").tensors["x"]
    assert (actual.dtype, actual.shape, bytes(actual.data)) == (dtype, shape, bytes(expected.data))
    with safe_open(tmp_path / "a", "pt") as file:
        pairs = (2,) if dtype in ("C64", "C128") else ()
        assert tuple(file.get_tensor("x").shape) == (*shape, *pairs)


def test_tensors_share_the_memory_that_was_read(path: Path) -> None:
    entry = container.read(path).tensors["dec/kernel"]
    entry.tensor().view(torch.uint8)[0, 0] = 77
    assert entry.data[0] == 77
    assert entry.tensor().data_ptr() % 64 == 0
    assert np.shares_memory(entry.array(), np.frombuffer(entry.data, np.uint8))


def test_memory_that_is_read_only_is_copied() -> None:
    entry = counting_tensor("F32", (3,))
    tensor = entry.tensor()
    tensor.zero_()
    assert bytes(entry.data) == bytes(range(12))


def test_memory_that_is_not_aligned_is_copied() -> None:
    room = memoryview(bytearray(range(33)))
    for begin in range(8):
        entry = StoredTensor("F64", (3,), room[begin : begin + 24])
        assert entry.tensor().data_ptr() % 8 == 0
        assert bytes(entry.tensor().view(torch.uint8).numpy()) == bytes(entry.data)
        assert entry.array().flags.aligned


def test_invalid_bool_bytes_raise() -> None:
    entry = StoredTensor("BOOL", (3,), memoryview(b"\0\1\2"))
    for function in (entry.tensor, entry.array):
        with pytest.raises(DataLossError, match=re.escape("A bool of shape (3,)")):
            function()


def test_numpy_has_no_bfloat16() -> None:
    with pytest.raises(UnsupportedCheckpointError, match="NumPy has no bfloat16"):
        counting_tensor("BF16", (2,)).array()


TENSORS: dict[str, torch.Tensor] = {
    "transposed": torch.arange(6.0).view(2, 3).t(),
    "every second": torch.arange(9.0)[::2],
    "expanded": torch.tensor([1.5]).expand(2, 3),
    "conjugated": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "negated": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "a parameter": torch.nn.Parameter(torch.ones(2)),
    "of inference": torch.inference_mode()(lambda: torch.ones(2) * 3)(),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_strided_tensors_are_stored(tensor: Tensor) -> None:
    actual = of_tensor(tensor).tensor()
    assert actual.dtype == tensor.dtype
    assert torch.equal(actual, tensor.detach().clone())


def test_contiguous_tensors_are_not_copied() -> None:
    tensor = torch.zeros(3)
    entry = of_tensor(tensor)
    tensor += 1
    assert bytes(entry.data) == np.ones(3, "f4").tobytes()


NO_TENSORS: dict[str, tuple[Any, type[Exception], str]] = {
    "sparse": (torch.eye(2).to_sparse(), InvalidTypeError, "sparse_coo"),
    "meta": (torch.empty(2, device="meta"), InvalidArgumentError, "meta device"),
    "bits": (torch.zeros(2, dtype=torch.uint8).view(torch.bits8), InvalidTypeError, "bits8"),
}


@pytest.mark.parametrize(("tensor", "error", "message"), NO_TENSORS.values(), ids=NO_TENSORS)
def test_unsupported_tensors_raise(tensor: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        of_tensor(tensor)


INVALID: dict[str, tuple[dict[str, StoredTensor], dict[Any, Any], str]] = {
    "a reserved name": (
        {"__metadata__": counting_tensor("U8", (1,))},
        {},
        "can be called '__metadata__'",
    ),
    "half a surrogate": ({"\ud800": counting_tensor("U8", (1,))}, {}, "No tensor can be called"),
    "an unknown dtype": (
        {"x": StoredTensor("F128", (0,), memoryview(b""))},
        {},
        "'F128' is no dtype",
    ),
    "too few bytes": ({"x": StoredTensor("F32", (2,), memoryview(b"1234"))}, {}, "'x' has 4 bytes"),
    "a negative size": ({"x": StoredTensor("F32", (-1, -1), memoryview(b"1234"))}, {}, "no shape"),
    "65 dimensions": ({"x": StoredTensor("U8", (1,) * 65, memoryview(b"1"))}, {}, "no shape"),
    "no number": ({}, {"best": float("nan")}, "document/best is nan"),
}


@pytest.mark.parametrize(("tensors", "document", "message"), INVALID.values(), ids=INVALID)
def test_invalid_inputs_raise(
    tensors: dict[str, StoredTensor], document: dict[Any, Any], message: str, path: Path
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        container.write(path, tensors, document)
    assert have_equal_contents(container.read(path), Contents(DOCUMENT, a_few()))
    assert os.listdir(path.parent) == ["ckpt"]


def test_a_file_is_described_without_its_tensors(path: Path) -> None:
    description = container.describe(path)
    assert description == container.verify(path)
    assert description.document == DOCUMENT
    assert description.bytes == path.stat().st_size
    assert list(description.tensors) == list(a_few())
    for name, tensor in a_few().items():
        entry = description.tensors[name]
        assert (entry.dtype, entry.shape) == (tensor.dtype, tensor.shape)
        raw = path.read_bytes()[entry.begin : entry.begin + entry.bytes]
        assert raw == bytes(tensor.data)


def test_subset_of_tensors_can_be_read(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[container.describe(path).tensors["dec/kernel"].begin] ^= 1
    path.write_bytes(raw)
    contents = container.read(path, {"step", "flags", "unknown"})
    expected = {name: tensor for name, tensor in a_few().items() if name in ("step", "flags")}
    assert have_equal_contents(contents, Contents(DOCUMENT, expected))
    with pytest.raises(DataLossError, match="'dec/kernel': Checksum does not match"):
        container.read(path, ["dec/kernel"])


def test_errors_describe_the_damaged_tensor(path: Path) -> None:
    entry = container.describe(path).tensors["dec/kernel"]
    raw = bytearray(path.read_bytes())
    raw[entry.begin + 10] ^= 64
    path.write_bytes(raw)
    actual = storage_files.crc32c(raw[entry.begin : entry.begin + entry.bytes])
    message = (
        f"{path}: 'dec/kernel': Checksum does not match: stored {entry.checksum} vs."
        f" calculated on the restored bytes {actual}"
    )
    for function in (container.read, container.verify):
        with pytest.raises(DataLossError) as error:
            function(path)
        assert str(error.value) == message


def test_file_kinds_are_distinguished(path: Path, tmp_path: Path) -> None:
    assert container.is_container(path)
    for number, content in enumerate((b"", b"{}", path.read_bytes()[:8])):
        (tmp_path / str(number)).write_bytes(content)
        assert not container.is_container(tmp_path / str(number))
    assert not container.is_container(tmp_path)
    assert not container.is_container(tmp_path / "missing")
    assert not container.is_container("/dev/zero")


@pytest.mark.parametrize("function", [container.read, container.verify, container.describe])
def test_paths_without_a_file_raise(function: Any, tmp_path: Path) -> None:
    for missing in (tmp_path / "missing", tmp_path / "a\0b"):
        with pytest.raises(MissingFileError):
            function(missing)
    with pytest.raises(InvalidArgumentError, match="This is a folder, not a file"):
        function(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidArgumentError, match="This is a device or a pipe, not a file"):
        function(tmp_path / "pipe")


def test_progress_goes_from_zero_to_total(tmp_path: Path) -> None:
    tensors = {"a": counting_tensor("F32", (3000, 700)), "b": counting_tensor("U8", (5,))}
    calls: list[tuple[int, int]] = []

    def note(count: int, total: int) -> None:
        calls.append((count, total))

    container.write(tmp_path / "a", tensors, {}, note)
    size = (tmp_path / "a").stat().st_size
    for function, total in (
        (None, size),
        (container.read, 8_400_005),
        (container.verify, 8_400_005),
    ):
        if function is not None:
            calls.clear()
            function(tmp_path / "a", progress=note)
        assert len(calls) > 2
        assert calls == sorted(calls)
        assert calls[-1] == (total, total)


def test_concurrently_changed_tensor_gives_a_valid_file(tmp_path: Path) -> None:
    tensor, stop = torch.zeros(1_000_000), threading.Event()

    def change() -> None:
        while not stop.is_set():
            tensor.add_(1.0)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(5):
            container.write(tmp_path / "a", {"x": of_tensor(tensor)}, {})
            container.verify(tmp_path / "a")
    finally:
        stop.set()
        thread.join()


def test_memory_error_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(*_: Any) -> Any:
        raise MemoryError

    files = os.listdir("/proc/self/fd")
    monkeypatch.setattr(np, "empty", empty)
    with pytest.raises(MemoryError):
        container.read(path)
    monkeypatch.undo()
    assert os.listdir("/proc/self/fd") == files
    assert have_equal_contents(container.read(path), Contents(DOCUMENT, a_few()))


def test_many_tensors_round_trip(tmp_path: Path) -> None:
    dice = random.Random(0)
    tensors = {f"layer{i}/w": counting_tensor("F32", (dice.randrange(9),), i) for i in range(2000)}
    container.write(tmp_path / "a", tensors, {"n": 2000})
    assert have_equal_contents(container.read(tmp_path / "a"), Contents({"n": 2000}, tensors))


def test_mapped_tensors_equal_read_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    container.write(path, {"w": of_tensor(torch.arange(5.0))}, {"a": 1})
    content = path.read_bytes()
    mapped = container.mapped(path)
    mapped.tensors["w"].tensor().zero_()  # does not reach the file
    assert path.read_bytes() == content

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no mapping here")

    monkeypatch.setattr("mmap.mmap", refuse)
    for contents in (container.mapped(path), container.read(path)):
        assert contents.document == {"a": 1}
        assert contents.tensors["w"].tensor().tolist() == [0, 1, 2, 3, 4]


def test_damaged_files_are_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    container.write(path, {"w": of_tensor(torch.arange(5.0))}, {})
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataLossError, match="'w'"):
        container.mapped(path)

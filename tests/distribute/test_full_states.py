"""Full states of DTensors, and offloaded ones; `full_state_cases` runs the slow cases on ranks.

The other cases take place on one rank of a group of four without messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from parallel_workers import run_ranks
from thalweg import engine, optim
from thalweg._core.dtensor import beside, local
from thalweg._engines import layout
from thalweg._engines.codecs import CODECS
from thalweg._engines.codecs.records import encode_tensor
from thalweg.errors import CheckpointMismatchError

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="torch without torch.distributed"
)

SCRIPT = Path(__file__).with_name("full_state_cases.py")
SHAPES = ((64, 128), (12, 7), (40, 200))
SPLIT: Any = {"weights": "split", "state_storage": "8bit"}
MAKERS: dict[str, Any] = {
    "8bit": lambda params: optim.AdamW(params, state_storage="8bit"),
    "split": lambda params: optim.AdamW(params, **SPLIT),
    "masters": lambda params: optim.AdamW(params, masters=True, ema_decay=0.9),
    "tensorflow": lambda params: optim.tensorflow.Adam(params, ema_decay=0.9),
    "SOAP": optim.SOAP,
    "NorMuon": optim.NorMuon,
}


@pytest.fixture(scope="module")
def meshes() -> Iterator[dict[str, tuple[Any, tuple[Any, ...]]]]:
    """Return a mesh and placements by name, on rank 1 of 4 ranks that send nothing."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    plane = init_device_mesh("cpu", (2, 2))
    yield {
        "FSDP": (init_device_mesh("cpu", (4,)), (Shard(0),)),
        "FSDP x TP": (plane, (_StridedShard(0, split_factor=2), Shard(0))),
        "HSDP": (plane, (Replicate(), Shard(0))),
        "columns": (plane, (Shard(0), Shard(1))),
    }
    distributed.destroy_process_group()


def sharded(full: Tensor, place: tuple[Any, Any]) -> Any:
    """Return this rank's part of a tensor as a DTensor parameter."""
    from torch.distributed.tensor import DTensor

    from thalweg.distribute.sharding.shard_index import local_index

    options: Any = {"run_check": False, "shape": full.shape, "stride": full.stride()}
    index = local_index(DTensor.from_local(torch.empty(0), *place, **options))
    part = index.read(full).contiguous().clone()
    return DTensor.from_local(part, *place, **options).requires_grad_()


def trained(name: str, shapes: Any = SHAPES) -> tuple[list[Tensor], Any]:
    """Return full parameters after a step, and their optimizer."""
    dtype = torch.bfloat16 if name in ("split", "masters") else torch.float32
    params = [nn.Parameter(torch.linspace(-1, 1, 9000)[: x * y].view(x, y)) for x, y in shapes]
    params = [nn.Parameter(param.detach().to(dtype)) for param in params]
    optimizer = MAKERS[name](params)
    for param in params:
        param.grad = torch.full_like(param, 0.5)
    with engine("reference"):
        optimizer.step()
    return params, optimizer


@pytest.mark.one_in(3)
@pytest.mark.parametrize("place", ["FSDP", "FSDP x TP", "HSDP", "columns"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_rank_takes_its_part_of_a_full_state(name: str, place: str, meshes: Any) -> None:
    from thalweg.distribute.sharding.shard_index import local_index

    shapes = SHAPES[:2] if place == "columns" else SHAPES
    params, reference = trained(name, shapes)
    parts = [sharded(param.detach(), meshes[place]) for param in params]
    optimizer = MAKERS[name](parts)
    optimizer.load_state_dict(deepcopy(reference.state_dict()))
    use, state_bytes = optim.memory(optimizer), 0
    for param, part in zip(params, parts, strict=True):
        for key, entry in reference.state[param].items():
            loaded = optimizer.state[part].get(key)
            state_bytes += local(loaded).nbytes if isinstance(loaded, Tensor) else 0
            if key == "encoded_shape":
                continue
            if loaded.dtype != entry.dtype:  # meshes do not encode rows that cut blocks
                assert part.shape == (40, 200)
            elif entry.dim():
                full = entry.view(loaded.shape)
                assert torch.equal(local(loaded), local_index(loaded).read(full))
            else:
                assert torch.equal(loaded, entry)
    assert use.total - use["weights"] - use["gradients"] == state_bytes


def test_an_unfit_full_state_raises_and_changes_nothing(meshes: Any) -> None:
    params, reference = trained("8bit")
    parts = [sharded(param.detach(), meshes["FSDP"]) for param in params]
    optimizer = MAKERS["8bit"](parts)
    state = deepcopy(reference.state_dict())
    state["state"][1]["exp_avg"] = torch.zeros(7, 12)
    with pytest.raises(CheckpointMismatchError, match=r"'1/exp_avg' is float32 \(7, 12\)"):
        optimizer.load_state_dict(state)
    assert not optimizer.state


EIGHT: Any = {"state_storage": "8bit"}
CODED: dict[str, tuple[Any, dict[str, Any]]] = {
    "8bit": (optim.AdamW, EIGHT),
    "linear8": (partial(optim.SGD, momentum=0.9), {"state_storage": "linear8"}),
    "dict": (optim.AdamW, {"state_storage": {"exp_avg": "dynamic8"}}),
    "split": (optim.AdamW, SPLIT),
    "masters": (optim.AdamW, {"masters": True, **EIGHT}),
    "tensorflow": (optim.tensorflow.Adam, EIGHT),
    "Mixed": (optim.Mixed, EIGHT),
}


def stepped(name: str, place: Any = None, **options: Any) -> tuple[Any, Any]:
    """Return a parameter and its optimizer after a step; with `place`, a DTensor."""
    make, coded = CODED[name]
    dtype = torch.bfloat16 if name in ("split", "masters") else torch.float32
    full = [torch.linspace(-1, 1, x * y).view(x, y).to(dtype) for x, y in ((64, 80), (12, 7))]
    params = [sharded(x, place) if place else nn.Parameter(x) for x in full]
    groups = [{"params": [x], "rule": rule} for x, rule in zip(params, ("AdamW", "Lion"))]
    optimizer = make(groups if name == "Mixed" else params, **{**coded, **options})
    for param in params:
        param.grad = param.detach() / (2 if place else 3)
    with engine("reference"):
        optimizer.step()
    return params[0], optimizer


@pytest.mark.parametrize("name", CODED)
def test_slots_that_meshes_leave_in_float32_are_encoded_and_decoded(name: str, meshes: Any) -> None:
    """Rows of 80 elements are not whole blocks of a codec."""
    from torch.distributed.tensor import Replicate

    place = meshes["FSDP"][0], (Replicate(),)
    param, optimizer = stepped(name, place)
    alone_param, alone = stepped(name)
    state, previous = optimizer.state_dict(), str(alone.state_dict())
    state["state"] = {
        key: {k: local(x).clone() if isinstance(x, Tensor) else x for k, x in entries.items()}
        for key, entries in state["state"].items()
    }
    with pytest.raises(CheckpointMismatchError, match=r"float32 .*uint8 .*; convert=True encodes"):
        alone.load_state_dict(deepcopy(state))
    assert str(alone.state_dict()) == previous
    alone.load_state_dict(state, convert=True)
    codecs = dict(alone.state_dict()["param_groups"][0]["state_storage"])
    assert codecs.pop("correction", "") == ("split8" if name == "split" else "")
    for slot, codec in codecs.items():
        numbers = local(optimizer.state[param][slot])
        assert torch.equal(alone.state[alone_param][slot], encode_tensor(CODECS[codec], numbers))
    decoded = optim.full_precision(alone)["state"][0]
    for convert, options in ((False, {}), (True, {}), (True, {"state_storage": None})):
        param, optimizer = stepped(name, place, **options)
        optimizer.load_state_dict(deepcopy(alone.state_dict()), convert=convert)
        for slot in codecs:
            numbers = local(optimizer.state[param][slot])
            assert torch.equal(numbers, decoded[slot].to(numbers.dtype))


class RemoteMemory:
    """Memory of the CPU that counts as that of another device."""

    def __init__(self) -> None:
        self._storages: list[torch.UntypedStorage] = []

    def take(self, tensor: Any) -> Any:
        """Return a copy of a DTensor whose local part is in this memory."""
        part = local(tensor).clone()
        self._storages.append(part.untyped_storage())
        return beside(part, tensor)

    def has(self, tensor: Any, device: object) -> bool:
        """Return whether a tensor is in this memory; replaces `layout.is_far`."""
        addresses = {storage.data_ptr() for storage in self._storages} - {0}
        return local(tensor).untyped_storage().data_ptr() in addresses


@pytest.mark.parametrize("options", [{"ema_decay": 0.9}, {"lookahead": 2}], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_averages_of_masters_of_a_part_are_parts_of_averages(
    dtype: torch.dtype, options: Any, meshes: Any
) -> None:
    full = nn.Parameter(torch.linspace(-1, 1, 512).view(32, 16).to(dtype))
    part = sharded(full.detach(), meshes["FSDP"])
    optimizers = [optim.AdamW([x], lr=0.1, masters=True, **options) for x in (full, part)]
    for step in range(4):
        full.grad = torch.full_like(full, 0.5 - step / 4)
        part.grad = beside(torch.full_like(local(part), 0.5 - step / 4), part)
        for optimizer in optimizers:
            optimizer.step()
    whole_entries, entries = (opt.state[x] for opt, x in zip(optimizers, (full, part)))
    assert torch.equal(local(part), full[8:16])
    assert whole_entries.keys() == entries.keys()
    for name, entry in entries.items():
        whole_entry = whole_entries[name]
        assert torch.equal(local(entry), whole_entry[8:16] if entry.dim() else whole_entry), name


OFFLOADED: list[tuple[torch.dtype, dict[str, Any]]] = [
    (torch.float32, {}),
    (torch.float32, {"ema_decay": 0.9, "clip_grad_value": 0.1}),
    (torch.bfloat16, {}),
    (torch.bfloat16, {"masters": True}),
]


@pytest.mark.parametrize(("dtype", "options"), OFFLOADED, ids=str)
def test_offloaded_dtensors_have_the_bits_of_others(
    dtype: torch.dtype, options: Any, meshes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = RemoteMemory()
    monkeypatch.setattr(layout, "is_far", memory.has)
    full = [torch.linspace(-1, 1, 9000)[: x * y].view(x, y).to(dtype) for x, y in SHAPES]
    params = [sharded(value, meshes["FSDP"]) for value in full]
    remote_params = [memory.take(param).requires_grad_() for param in params]
    optimizers = [
        optim.AdamW(params, lr=0.1, **options),
        optim.AdamW(remote_params, lr=0.1, state_device="cpu", **options),
    ]
    for step in range(4):
        for param, remote in zip(params, remote_params, strict=True):
            param.grad = beside(torch.full_like(local(param), 0.5 - step / 4), param)
            remote.grad = memory.take(param.grad)
            if step == 2:  # a write of the user
                with torch.no_grad():
                    param.clamp_(-0.5, 0.5), remote.clamp_(-0.5, 0.5)
        with engine("reference"):
            for optimizer in optimizers:
                optimizer.step()
        if step == 2:
            optimizers[1].load_state_dict(optimizers[1].state_dict())
    for param, remote in zip(params, remote_params, strict=True):
        assert torch.equal(local(param), local(remote))
        entries, remote_entries = (opt.state[x] for opt, x in zip(optimizers, (param, remote)))
        assert entries.keys() == remote_entries.keys()
        for name, entry in entries.items():
            assert torch.equal(local(entry), local(remote_entries[name])), name
            assert not memory.has(remote_entries[name], None)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2])
def test_files_offload_and_memory_on_ranks(count: int, tmp_path: Path) -> None:
    for report in run_ranks(SCRIPT, tmp_path, count, str(tmp_path)):
        for case, results in report.items():
            assert results, case
            assert all(results.values()), (case, results)

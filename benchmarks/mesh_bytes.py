"""Bytes that a step of matrices sends on meshes of four ranks, beside an all-gather of everything.

    python benchmarks/ranks.py --bytes

The parameters are those of two layers of a transformer, and of two layers of experts. An all-gather
sends each rank's shards of parameters, or of momenta, to all ranks that have other shards of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from thalweg import optim
from thalweg._cli.launch import launch_ranks
from thalweg.distribute import Strategy
from thalweg.distribute.process_group import Ranks

WIDTH, LAYERS, EXPERTS = 128, 2, 8
SHAPES = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)) * LAYERS
EXPERT_SHAPES = ((EXPERTS, 2 * WIDTH, WIDTH), (EXPERTS, WIDTH, 2 * WIDTH)) * LAYERS
STRIPES, ROWS, COLUMNS, COPY = _StridedShard(0, split_factor=2), Shard(0), Shard(1), Replicate()
MESHES: dict[str, tuple[tuple[int, ...], Sequence[Any], Any]] = {
    "FSDP": ((4,), [(ROWS,)], SHAPES),
    "HSDP": ((2, 2), [(COPY, ROWS)], SHAPES),
    "FSDP x TP": ((2, 2), [(STRIPES, ROWS), (ROWS, COLUMNS)], SHAPES),
    "experts": ((4,), [(ROWS,)], EXPERT_SHAPES),
    "experts x FSDP": ((2, 2), [(COLUMNS, ROWS)], EXPERT_SHAPES),
}
RULES: dict[str, Callable[..., Any]] = {
    "Muon": optim.Muon,
    "NorMuon": optim.NorMuon,
    "SOAP": partial(optim.SOAP, precondition_frequency=10),
}
STEPS = 10


def _params(mesh: str) -> list[Any]:
    sizes, placements, shapes = MESHES[mesh]
    device_mesh = init_device_mesh("cpu", sizes)
    params: list[Any] = []
    for index, shape in enumerate(shapes):
        value = torch.randn(shape, generator=torch.Generator().manual_seed(index))
        placement = placements[index % len(placements)]
        param = distribute_tensor(value, device_mesh, placement, src_data_rank=None)
        params.append(param.requires_grad_())
    return params


def _all_gather(params: Sequence[Any]) -> int:
    """Return the bytes that a rank sends in an all-gather of all shards."""
    sent_bytes = 0
    for param in params:
        pairs = zip(param.placements, param.device_mesh.shape, strict=True)
        parts = torch.Size(size for placement, size in pairs if not placement.is_replicate())
        sent_bytes += param.to_local().nbytes * (parts.numel() - 1)
    return sent_bytes


def _measured() -> dict[str, dict[str, float]]:
    """Measure on one rank; return the mean bytes that a rank sends in a step, by mesh and rule."""
    torch.set_num_threads(1)
    ranks = Strategy().ranks
    sent_bytes = [0]
    exchange = Ranks.begin_exchanging

    def counted(self: Ranks, parts: Sequence[Tensor], outputs: Sequence[Tensor]) -> Any:
        sent_bytes[0] += sum(part.nbytes for rank, part in enumerate(parts) if rank != self.rank)
        return exchange(self, parts, outputs)

    Ranks.begin_exchanging = counted
    report: dict[str, dict[str, float]] = {}
    for mesh, (_, _, shapes) in MESHES.items():
        params = _params(mesh)
        row = report[mesh] = {"all-gather": _all_gather(params)}
        layout = {"layout": "batch=1"} if shapes is EXPERT_SHAPES else {}
        for rule, make in RULES.items():
            optimizer = make(params, **layout)
            sent_bytes[0] = 0
            for _ in range(STEPS):
                for param in params:
                    param.grad = param.detach()
                optimizer.step()
            total = torch.tensor([float(sent_bytes[0])])
            ranks.add(total)
            row[rule] = total.item() / ranks.size / STEPS
    return report


def print_table() -> None:
    """Print kilobytes that a rank sends in a step, by mesh and rule."""
    table = Table(title="kB that each of 4 ranks sends in a step")
    for heading in ("mesh", "all-gather", *RULES):
        table.add_column(heading, justify="right")
    for mesh, row in launch_ranks(4, _measured).items():
        table.add_row(mesh, *(f"{row[name] / 1e3:.0f}" for name in ("all-gather", *RULES)))
    Console(width=110).print(table)

"""Steps of DTensors on meshes of several dimensions beside steps of one process.

Run by `test_meshes.py` on each rank: rank, a file to meet, the number of ranks, names of cases.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

sys.path[:0] = [str(Path(__file__).parents[1] / "support")]

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Replicate,
    Shard,
)
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

from busy import scale_to_load  # noqa: E402
from thalweg import optim  # noqa: E402
from thalweg.distribute.sharding.shard_index import local_index  # noqa: E402

ROWS, COLUMNS, COPY = Shard(0), Shard(1), Replicate()
STRIPES = _StridedShard(0, split_factor=2)
SHAPES = (
    (12, 7), (24, 16), (24, 16), (16, 24), (5, 9), (3, 4), (8, 8), (6, 2, 3, 1), (1, 5),
)  # fmt: skip
STEPS = 3

# For each mesh: its sizes for 1, 2, 4 and 8 ranks, and the placements of parameters in turn.
Sizes = dict[int, tuple[int, ...]]
LINE: Sizes = {1: (1,), 2: (2,), 4: (4,), 8: (8,)}
PLANE: Sizes = {1: (1, 1), 2: (1, 2), 4: (2, 2), 8: (4, 2)}
SPACE: Sizes = {1: (1, 1, 1), 2: (1, 1, 2), 4: (1, 2, 2), 8: (2, 2, 2)}
MESHES: dict[str, tuple[Sizes, tuple[tuple[Any, ...], ...]]] = {
    "FSDP": (LINE, ((ROWS,),)),
    "TP": (LINE, ((ROWS,), (COLUMNS,), (COPY,))),
    "HSDP": (PLANE, ((COPY, ROWS),)),
    "FSDP x TP": (PLANE, ((STRIPES, ROWS), (ROWS, COLUMNS), (COLUMNS, ROWS), (ROWS, COPY))),
    "HSDP x TP": (SPACE, ((COPY, STRIPES, ROWS), (COPY, ROWS, COLUMNS), (COPY, ROWS, COPY))),
}
Factory = Callable[[Any], Any]
RULES: dict[str, Factory] = {
    "Muon": lambda params: optim.Muon(params, lr=0.02),
    "NorMuon": lambda params: optim.NorMuon(params, lr=0.02),
    "MuonH": lambda params: optim.MuonH(params, lr=0.02),
    "SOAP": lambda params: optim.SOAP(params, lr=0.01, precondition_frequency=2),
    "KLSOAP": lambda params: optim.KLSOAP(params, lr=0.01, precondition_frequency=2),
    "Mixed": lambda params: optim.Mixed(
        [
            {"params": params[:2], "rule": "AdamW", "lr": 0.02},
            {"params": params[2:5], "rule": "SOAP", "lr": 0.02},
            {"params": params[5:], "rule": "Muon", "lr": 0.02},
        ]
    ),
}


def values(seed: int) -> list[Tensor]:
    """Return random tensors of all shapes."""
    noise = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=noise) for shape in SHAPES]


def sharded(value: Tensor, mesh: Any, placements: Any) -> Tensor:
    """Return a DTensor of a tensor that all ranks have."""
    empty = torch.empty(0)
    options: Any = {"run_check": False, "shape": value.shape, "stride": value.stride()}
    index = local_index(DTensor.from_local(empty, mesh, placements, **options))
    return DTensor.from_local(index.read(value).contiguous().clone(), mesh, placements, **options)


def is_part(tensor: Any, full: Tensor) -> bool:
    """Return whether this rank's part of a tensor has the bits of the full one."""
    if isinstance(tensor, DTensor):
        return torch.equal(tensor.to_local(), local_index(tensor).read(full))
    return torch.equal(tensor, full)


def step(optimizer: Any, params: Any, seed: int, mesh: Any = None, placements: Any = ()) -> None:
    """Take a step with random gradients, which are DTensors on a mesh."""
    for index, (param, grad) in enumerate(zip(params, values(100 + seed), strict=True)):
        grad = grad.to(param.dtype)
        if mesh is not None:
            grad = sharded(grad, mesh, placements[index % len(placements)])
        param.grad = grad
    optimizer.step()


def states(optimizer: Any, params: Any) -> list[Any]:
    """Return the tensors in the state of parameters."""
    entries = [optimizer.state[param] for param in params]
    return [state[name] for state in entries for name in sorted(state)]


def case_of(rule: str, mesh_name: str, count: int) -> dict[str, Any]:
    """Train on a mesh and alone; return the numbers of tensors that differ."""
    sizes, placements = MESHES[mesh_name]
    mesh = init_device_mesh("cpu", sizes[count])
    alone = [value.requires_grad_() for value in values(0)]
    params = [
        sharded(value, mesh, placements[index % len(placements)]).requires_grad_()
        for index, value in enumerate(values(0))
    ]
    optimizer, reference = RULES[rule](params), RULES[rule](alone)
    for seed in range(STEPS):
        step(optimizer, params, seed, mesh, placements)
        step(reference, alone, seed)
    pairs = zip(params, alone, strict=True)
    state_pairs = zip(states(optimizer, params), states(reference, alone), strict=True)
    return {
        "params": [k for k, pair in enumerate(pairs) if not is_part(*pair)],
        "state": [k for k, pair in enumerate(state_pairs) if not is_part(*pair)],
        "moved": not any(map(torch.equal, alone, values(0))),
    }


def trained(rank: int, count: int, folder: Path) -> Any:
    """Train all rules on all meshes."""
    return {
        f"{rule} on {mesh}": case_of(rule, mesh, count) for mesh in MESHES for rule in RULES
    }


CASES: dict[str, Callable[[int, int, Path], Any]] = {"trained": trained}


def main() -> None:
    warnings.simplefilter("error")
    rank, path, count, folder = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=scale_to_load(60)),
    )
    torch.set_num_threads(1)
    names = sys.argv[5:] or list(CASES)
    print(json.dumps({name: CASES[name](rank, count, Path(folder)) for name in names}))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

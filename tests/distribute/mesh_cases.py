"""Steps of DTensors on meshes of several dimensions beside steps of one process.

Run by `test_meshes.py`: the number of ranks, a folder, names of cases.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import cycle, product
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rank_process import joined_group

sys.path[:0] = [str(Path(__file__).parents[1] / "support")]

from torch.distributed import checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Replicate,
    Shard,
)
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

from thalweg import optim  # noqa: E402
from thalweg.distribute.sharding.shard_index import local_index  # noqa: E402

Row = TypeVar("Row")
ROWS, COLUMNS, COPY = Shard(0), Shard(1), Replicate()
STRIPES = _StridedShard(0, split_factor=2)
SHAPES = (
    (12, 7), (24, 16), (24, 16), (16, 24), (5, 9), (3, 4), (8, 8), (6, 2, 3, 1), (1, 5),
)  # fmt: skip
STEPS = 3

# The sizes of each mesh for 1, 2, 4 and 8 ranks.
Sizes = dict[int, tuple[int, ...]]
LINE: Sizes = {1: (1,), 2: (2,), 4: (4,), 8: (8,)}
PLANE: Sizes = {1: (1, 1), 2: (1, 2), 4: (2, 2), 8: (4, 2)}
SPACE: Sizes = {1: (1, 1, 1), 2: (1, 1, 2), 4: (1, 2, 2), 8: (2, 2, 2)}
EXPERTS = ((5, 6, 4), (4, 6, 4), (1, 4, 8), (9, 4, 4))
# The mesh and the placements of the parameters of each case, in turn.
Places = tuple[tuple[Sizes, tuple[Any, ...]], ...]


def on(sizes: Sizes, *placements: tuple[Any, ...]) -> Places:
    return tuple((sizes, placement) for placement in placements)


MESHES: dict[str, Places] = {
    "FSDP": on(LINE, (ROWS,)),
    "TP": on(LINE, (ROWS,), (COLUMNS,), (COPY,)),
    "HSDP": on(PLANE, (COPY, ROWS)),
    "FSDP x TP": on(PLANE, (STRIPES, ROWS), (ROWS, COLUMNS), (COLUMNS, ROWS), (ROWS, COPY)),
    "HSDP x TP": on(SPACE, (COPY, STRIPES, ROWS), (COPY, ROWS, COLUMNS), (COPY, ROWS, COPY)),
    "two meshes": on(LINE, (ROWS,)) + on(PLANE, (COPY, COLUMNS), (STRIPES, ROWS)),
    "experts": on(LINE, (ROWS,)),
    "experts x FSDP": on(PLANE, (COLUMNS, ROWS), (STRIPES, ROWS), (Shard(2), ROWS)),
    "experts x HSDP": on(SPACE, (COPY, COLUMNS, ROWS), (COPY, COPY, ROWS)),
    "experts x TP": on(PLANE, (ROWS, COLUMNS)) + on(LINE, (COLUMNS,)),
}


@cache
def mesh_of(sizes: tuple[int, ...], names: tuple[str, ...] | None = None) -> Any:
    """Return a mesh; the groups of each are made once."""
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def layouts_of(mesh_name: str) -> dict[str, str]:
    """Return the option of the matrices that parameters hold."""
    return {"layout": "batch=1"} if "experts" in mesh_name else {}


BFLOAT: Any = {"state_dtype": torch.bfloat16}
ROUNDED: Any = {"round": "stochastic", "seed": 3, **BFLOAT}
MASTERS: Any = {"masters": True, **ROUNDED}
Factory = Callable[..., Any]


def mixed(params: Any, clip_grad_norm: float | None = None, **layout: str) -> Any:
    groups = [
        {"params": params[:1], "rule": "AdamW", "lr": 0.02},
        {"params": params[1:3], "rule": "SOAP", "lr": 0.02, **layout},
        {"params": params[3:], "rule": "Muon", "lr": 0.02, **layout},
    ]
    return optim.Mixed(groups, clip_grad_norm=clip_grad_norm)


RULES: dict[str, Factory] = {
    "Muon": partial(optim.Muon, lr=0.02),
    "NorMuon": partial(optim.NorMuon, lr=0.02),
    "MuonH": partial(optim.MuonH, lr=0.02),
    "SOAP": partial(optim.SOAP, lr=0.01, precondition_frequency=2),
    "KLSOAP": partial(optim.KLSOAP, lr=0.01, precondition_frequency=2),
    "SOAP of one side": partial(optim.SOAP, lr=0.01, max_precondition_dim=7),
    "Mixed": mixed,
    "Mixed clipped": partial(mixed, clip_grad_norm=0.5),
    "AdamW bf16": lambda params, **_: optim.AdamW(params, lr=0.02, **ROUNDED),
    "Muon bf16": partial(optim.Muon, lr=0.02, **ROUNDED),
    "AdamW bf16 masters": lambda params, **_: optim.AdamW(params, lr=0.02, **MASTERS),
    "Muon bf16 masters": partial(optim.Muon, lr=0.02, **MASTERS),
    "SOAP bf16": partial(optim.SOAP, lr=0.02, round="stochastic"),
}


def values(seed: int, shapes: Any = SHAPES) -> list[Tensor]:
    """Return random tensors."""
    noise = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=noise) for shape in shapes]


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


def states(optimizer: Any, params: Any) -> list[Any]:
    """Return the tensors in the state of parameters."""
    entries = [optimizer.state[param] for param in params]
    return [state[name] for state in entries for name in sorted(state)]


def case_of(rule: str, mesh_name: str, count: int) -> dict[str, Any]:
    """Train on a mesh and alone; return the numbers of tensors that differ."""
    shapes = EXPERTS if "experts" in mesh_name else SHAPES
    places = [
        (mesh_of(sizes[count]), placements)
        for _, (sizes, placements) in zip(shapes, cycle(MESHES[mesh_name]))
    ]
    dtype = torch.bfloat16 if "bf16" in rule else torch.float32
    initial = [value.to(dtype) for value in values(0, shapes)]
    alone = [value.clone().requires_grad_() for value in initial]
    pairs = zip(initial, places, strict=True)
    params = [sharded(value, *place).requires_grad_() for value, place in pairs]
    optimizer, reference = (RULES[rule](x, **layouts_of(mesh_name)) for x in (params, alone))
    for seed in range(STEPS):
        for index, grad in enumerate(values(100 + seed, shapes)):
            alone[index].grad = grad.to(dtype)
            params[index].grad = sharded(grad.to(dtype), *places[index])
        optimizer.step()
        reference.step()
    pairs = zip(params, alone, strict=True)
    state_pairs = zip(states(optimizer, params), states(reference, alone), strict=True)
    return {
        "params": [k for k, pair in enumerate(pairs) if not is_part(*pair)],
        "state": [k for k, pair in enumerate(state_pairs) if not is_part(*pair)],
        "moved": not any(map(torch.equal, alone, initial)),
    }


def whole(tensor: Any) -> Tensor:
    """Return the full tensor of a DTensor."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def module_on(kind: str, count: int, dtype: torch.dtype) -> nn.Module:
    """Return a module that torch's functions shard."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 16, bias=False), nn.Linear(16, 12, bias=False)).to(dtype)
    names = {"FSDP": ("dp",), "HSDP": ("copies", "dp"), "FSDP x TP": ("dp", "tp")}
    names["HSDP x TP"] = ("copies", "dp", "tp")
    if kind == "alone":
        return module
    sizes = MESHES[kind][0][0][count]
    mesh = mesh_of(sizes, names[kind])
    if "TP" in kind:
        parallelize_module(module, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(module, mesh=mesh["copies", "dp"] if "HSDP" in kind else mesh["dp"])
    return module


MODULES = ("FSDP", "HSDP", "FSDP x TP", "HSDP x TP")
MODULE_RULES: dict[str, Factory] = {
    **{name: RULES[name] for name in ("Muon", "SOAP", "NorMuon", "AdamW bf16 masters")},
    "AdamW": lambda params: optim.AdamW(params, lr=0.02, round="stochastic", **BFLOAT),
}


def turn(module: nn.Module, optimizer: Any, seed: int, grads: Any = None) -> list[Tensor]:
    """Take a step with gradients of a batch, or with those of another module; return them."""
    optimizer.zero_grad()
    if grads is None:
        noise = torch.Generator().manual_seed(seed)
        batch = torch.randn(6, 12, generator=noise).to(next(module.parameters()).dtype)
        module(batch).square().mean().backward()
    for param, grad in zip(module.parameters(), grads or (), strict=False):
        param.grad = sharded(grad, param.device_mesh, param.placements) if isinstance(
            param, DTensor) else grad  # fmt: skip
    full = [whole(param.grad) for param in module.parameters()]
    optimizer.step()
    return full


def module_case(rule: str, kind: str, count: int, folder: Path) -> list[str]:
    """Train a module that torch shards, save it, and continue it on each mesh.

    Returns:
        The meshes on which numbers differ from those of one process.
    """
    dtype, make = torch.bfloat16 if "bf16" in rule else torch.float32, MODULE_RULES[rule]
    module, alone = (module_on(name, count, dtype) for name in (kind, "alone"))
    optimizer, reference = make(list(module.parameters())), make(list(alone.parameters()))
    for seed in range(2):
        turn(alone, reference, seed, turn(module, optimizer, seed))
    path = folder / f"{rule} {kind}"
    weights, slots = get_state_dict(module, optimizer)
    dcp.save({"model": weights, "optim": slots}, checkpoint_id=path)
    grads = turn(module, optimizer, 2)
    turn(alone, reference, 2, grads)
    expected = [*alone.parameters(), *states(reference, alone.parameters())]
    trained = [*module.parameters(), *states(optimizer, module.parameters())]
    differing = [] if all(map(is_part, trained, expected)) else ["trained"]
    for other in ("alone", *MODULES):
        resumed = module_on(other, count, dtype)
        resumed_opt = make(list(resumed.parameters()))
        weights, slots = get_state_dict(resumed, resumed_opt)
        dcp.load({"model": weights, "optim": slots}, checkpoint_id=path)
        set_state_dict(resumed, resumed_opt, model_state_dict=weights, optim_state_dict=slots)
        turn(resumed, resumed_opt, 2, grads)
        final = [*resumed.parameters(), *states(resumed_opt, resumed.parameters())]
        if not all(map(is_part, final, expected)):
            differing.append(other)
    return differing


def share(rows: Iterable[Row], count: int, counts: tuple[int, ...] = (1, 2, 4)) -> list[Row]:
    """Return the rows of a table that a number of ranks takes, if `counts` take turns.

    The length of the last column must be no multiple of the number of counts.
    """
    return [row for row, ranks in zip(rows, cycle(counts)) if ranks == count]


def cases_of(count: int) -> list[str]:
    """Return the cases of a number of ranks."""
    cases = [f"{rule} on {mesh}" for mesh, rule in share(product(MESHES, RULES), count)]
    rows = share(product(MODULES, MODULE_RULES), count)
    return cases + [f"module, {rule} on {kind}" for kind, rule in rows]


def run_rank(rank: int, count: int, folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Run cases on one rank; return the report of each."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", ".*returned a view tensor")  # torch's own, of FSDP2
    reports: dict[str, Any] = {}
    with joined_group(rank, folder / "store", count, 120):
        for name in names:
            rule, mesh = name.removeprefix("module, ").split(" on ")
            if name.startswith("module"):
                reports[name] = module_case(rule, mesh, count, folder)
            else:
                reports[name] = case_of(rule, mesh, count)
    return reports


def main() -> None:
    """Run cases on ranks that are forks of this process; print their reports."""
    count, folder = int(sys.argv[1]), Path(sys.argv[2])
    names = sys.argv[3:] or cases_of(count)
    torch.set_num_threads(1)
    results = [folder / f"rank-{rank}.json" for rank in range(count)]
    children: list[int] = []
    for rank, result in enumerate(results):
        child = os.fork()
        if not child:
            result.write_text(json.dumps(run_rank(rank, count, folder, names)))
            os._exit(0)
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert not any(statuses), statuses
    print(json.dumps([json.loads(result.read_text()) for result in results]))


if __name__ == "__main__":
    main()

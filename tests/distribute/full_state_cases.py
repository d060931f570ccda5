"""States of DTensors as full tensors: files of `thalweg.checkpoint`, and CPU offload.

Run by `test_full_states.py` on each rank: rank, a file to meet, the number of ranks, a folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rank_process import report_cases

sys.path[:0] = [str(Path(__file__).parents[1] / "support")]

from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

from thalweg import checkpoint, optim  # noqa: E402


def mixed(module: nn.Module) -> Any:
    """Return 8-bit Muon and AdamW."""
    matrices = [param for param in module.parameters() if param.dim() == 2]
    vectors = [param for param in module.parameters() if param.dim() == 1]
    groups = [
        {"params": matrices, "rule": "Muon", "lr": 0.02},
        {"params": vectors, "rule": "AdamW"},
    ]
    return optim.Mixed(groups, state_storage="8bit")


SPLIT: Any = {"weights": "split", "state_storage": "8bit"}
RULES: dict[str, Callable[[Any], Any]] = {
    "split": lambda module: optim.AdamW(module.parameters(), lr=0.02, **SPLIT),
    "mixed": mixed,
    "tensorflow": lambda module: optim.tensorflow.Adam(module.parameters(), ema_decay=0.9),
    "away": lambda module: optim.AdamW(module.parameters(), state_device="cpu", masters=True),
}


def training(rule: str, is_sharded: bool, **options: Any) -> tuple[nn.Module, Any]:
    """Return a module, sharded by torch or not, and its optimizer."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 64))
    module = module.to(torch.bfloat16 if rule in ("split", "away") else torch.float32)
    if is_sharded:
        fully_shard(module, **options)
    return module, RULES[rule](module)


def turn(module: nn.Module, optimizer: Any, grads: Any = None) -> list[Tensor]:
    """Take a step with gradients of a batch, or with full ones; return the full gradients."""
    optimizer.zero_grad()
    if grads is None:
        dtype = next(module.parameters()).dtype
        module(torch.ones(6, 64, dtype=dtype)).float().square().mean().backward()
    for param, grad in zip(module.parameters(), grads or (), strict=False):
        param.grad = grad.clone()
    full = [whole(param.grad) for param in module.parameters()]
    optimizer.step()
    return full


def whole(tensor: Any) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def values(module: nn.Module, optimizer: Any) -> list[Tensor]:
    """Return parameters and state as full tensors."""
    states = [optimizer.state[param] for param in module.parameters()]
    entries = [state[name] for state in states for name in sorted(state)]
    return [*map(whole, module.parameters()), *map(whole, entries)]


def are_equal(first: list[Tensor], second: list[Tensor]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(x.dtype == y.dtype and torch.equal(x.view(y.shape), y) for x, y in pairs)


def files(count: int, folder: Path) -> dict[str, bool]:
    """Save trainings to one file; continue them on these ranks, and in one process."""
    report: dict[str, bool] = {}
    for rule in RULES:
        module, optimizer = training(rule, is_sharded=True)
        grads = [turn(module, optimizer) for _ in range(2)][-1]
        path = folder / f"{rule}.safetensors"
        checkpoint.save(path, optimizer=optimizer, module=module)
        for is_sharded in (True, False):
            resumed = training(rule, is_sharded)
            checkpoint.restore(path, optimizer=resumed[1], module=resumed[0])
            report[f"{rule} restored, {is_sharded}"] = are_equal(
                values(module, optimizer), values(*resumed)
            )
        state = deepcopy(resumed[1].state_dict())  # of one process
        loaded = training(rule, is_sharded=True)
        checkpoint.restore(path, optimizer=False, module=loaded[0])
        loaded[1].load_state_dict(state)
        grads = turn(module, optimizer)
        turn(*loaded)
        turn(*resumed, grads)
        expected = values(module, optimizer)
        report[f"{rule} loaded"] = are_equal(expected, values(*loaded))
        report[f"{rule} continued"] = are_equal(expected, values(*resumed))
    return report


def offloaded(count: int, folder: Path) -> dict[str, bool]:
    """Train with parameters that FSDP2 keeps on the CPU."""
    report: dict[str, bool] = {}
    for rule in ("split", "mixed"):
        trainings = [training(rule, True, offload_policy=CPUOffloadPolicy(pin_memory=False))]
        trainings.append(training(rule, True))
        for pair in trainings:
            turn(*pair)
            turn(*pair)
        report[rule] = are_equal(*(values(*pair) for pair in trainings))
    return report


def memory(count: int, folder: Path) -> dict[str, bool]:
    """Compare predicted bytes of this rank with those that it has."""
    report: dict[str, bool] = {}
    for rule in RULES:
        module, optimizer = training(rule, is_sharded=True)
        use = optim.memory(optimizer)
        turn(module, optimizer)
        tensors = [x for state in optimizer.state.values() for x in state.values()]
        state_bytes = sum(
            (x.to_local() if isinstance(x, DTensor) else x).nbytes
            for x in tensors
            if isinstance(x, Tensor)
        )
        report[rule] = use.total - use["weights"] - use["gradients"] == state_bytes and use.is_part
    return report


CASES: dict[str, Callable[[int, Path], Any]] = {
    "files": files,
    "offloaded": offloaded,
    "memory": memory,
}


if __name__ == "__main__":
    report_cases(CASES)

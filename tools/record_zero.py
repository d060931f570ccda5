"""Record trainings with DeepSpeed ZeRO, whose optimizer states `thalweg` converts.

    python tools/record_zero.py tests/goldens/converted

Needs torch and deepspeed 0.19.8. Each case of ZERO in tests/support/converted_cases.py is trained
by a process for each rank on the CPU; the checkpoint after five steps is written to a folder, and
the parameters after ten steps in float32 to `values.npz` in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from converted_cases import (  # pyright: ignore[reportMissingImports]
    SMALL,
    STEPS,
    ZERO,
    gradients_of,
    initial_values,
)

VERSION = "0.19.8"


class Model(torch.nn.Module):
    """A model whose gradients are given: its loss is linear."""

    def __init__(self) -> None:
        super().__init__()
        for name, entry in zip(("weight", "bias"), initial_values(SMALL), strict=True):
            self.register_parameter(name, torch.nn.Parameter(entry))

    def forward(self, grads: Any) -> torch.Tensor:
        """Return the loss whose gradients are given."""
        pairs = zip(self.parameters(), grads, strict=True)
        return sum((param * grad.to(param.dtype)).sum() for param, grad in pairs)  # pyright: ignore[reportReturnType]


def train(name: str, rank: int, folder: Path) -> None:
    """Train a case as one of its ranks."""
    deepspeed: Any = import_module("deepspeed")
    full_param = import_module("deepspeed.utils").safe_get_full_fp32_param

    if deepspeed.__version__ != VERSION:
        raise SystemExit(f"deepspeed is {deepspeed.__version__}, and {VERSION} is recorded.")
    # The operation for shared memory, which is compiled, is not needed.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    case = ZERO[name]
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(case.ranks),
                   "LOCAL_SIZE": str(case.ranks), "MASTER_ADDR": "127.0.0.1"}  # fmt: skip
    deepspeed.init_distributed("gloo")
    model = Model()
    groups = [{"params": [model.weight], "weight_decay": 0.1}, {"params": [model.bias]}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": case.stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": case.dtype == torch.bfloat16},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for step in range(2 * STEPS):
        loss = engine(gradients_of(SMALL, step))
        engine.backward(loss)
        engine.step()
        if step + 1 == STEPS:
            engine.save_checkpoint(str(folder), tag=".", save_latest=False)
    params: list[Any] = [full_param(param) for param in model.parameters()]
    if not rank:
        arrays = {str(place): entry.numpy() for place, entry in enumerate(params)}
        np.savez_compressed(folder / "values.npz", **arrays)


def main(target: Path) -> None:
    """Train the cases whose folders the target lacks."""
    for place, (name, case) in enumerate(ZERO.items()):
        folder = target / name
        if folder.exists():
            continue
        variables = {**os.environ, "DS_ACCELERATOR": "cpu", "MASTER_PORT": str(29720 + place)}
        commands = [
            [sys.executable, __file__, str(folder), name, str(r)] for r in range(case.ranks)
        ]
        processes = [subprocess.Popen(command, env=variables) for command in commands]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"{name} failed.")
        for file in folder.iterdir():
            if file.suffix not in (".pt", ".npz"):
                shutil.rmtree(file) if file.is_dir() else file.unlink()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        train(sys.argv[2], int(sys.argv[3]), Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]))

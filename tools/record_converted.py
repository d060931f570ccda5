"""Record trainings with optimizers of other packages, whose states `thalweg` converts.

    python tools/record_converted.py tests/goldens/converted SOURCES

SOURCES has clones of the repositories in COMMITS, as `SOURCES/<owner>/<name>`. Needs torch and the
packages in VERSIONS. Each case of tests/support/converted_cases.py is trained for five steps; its
state is written to `<case>.pt`, and its parameters after five and after ten steps to `values.npz`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # torchao compiles its step
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from converted_cases import (  # pyright: ignore[reportMissingImports]
    CASES,
    STEPS,
    Case,
    group_dicts,
    make_params,
    set_gradients,
)

VERSIONS = {"bitsandbytes": "0.50.2", "torchao": "0.18.0", "schedulefree": "1.4.1",
            "prodigyopt": "1.1.2", "timm": "1.0.31"}  # fmt: skip
COMMITS = {
    "KellerJordan/Muon": "857d1adc159e098212f828d927460782d3da59e9",
    "sail-sg/Adan": "2c65beaf400775753b155da4082c3819fea689b9",
    "apple/ml-ademamix": "c3d73c09f1287e5c33b95189bb0aa7de0a5a7667",
    "nikhilvyas/SOAP": "a1e553530fde97d0e6b307d7c82ac6d38b072340",
}


def class_of(source: str, folder: Path) -> Callable[..., Any]:
    """Return the class of an author, of an installed package or of a file of a repository."""
    module, _, name = source.partition(":")
    if not module.endswith(".py"):
        return getattr(import_module(module), name)
    owner, repository, path = module.split("/", 2)
    title = f"{owner}/{repository}"
    show = ["git", "-C", str(folder / title), "show", f"{COMMITS[title]}:{path}"]
    names: dict[str, Any] = {"__name__": repository}
    exec(subprocess.check_output(show, text=True), names)
    return names[name]


def record(case: Case, cls: Callable[..., Any], path: Path) -> list[list[np.ndarray]]:
    """Write the state after five steps; return the parameters after five and after ten."""
    torch.manual_seed(0)
    params = make_params(case)
    optimizer = cls(group_dicts(case, params), **case.options)
    arrays: list[list[np.ndarray]] = []
    for number in range(2 * STEPS):
        # Schedule-free classes have two modes, and train in the first.
        if hasattr(optimizer, "train"):
            optimizer.train()
        set_gradients(params, number)
        optimizer.step()
        if number + 1 == STEPS:
            if hasattr(optimizer, "eval"):
                optimizer.eval()
            torch.save(optimizer.state_dict(), path)
        if number + 1 in (STEPS, 2 * STEPS):
            arrays.append([param.detach().numpy().copy() for param in params])
    return arrays


def main(target: Path, folder: Path) -> None:
    """Write the files of all cases that the target lacks."""
    for name, number in VERSIONS.items():
        if version(name) != number:
            raise SystemExit(f"{name} is {version(name)}, and {number} is recorded.")
    target.mkdir(exist_ok=True)
    path = target / "values.npz"
    values = dict(np.load(path)) if path.exists() else {}
    for name, case in CASES.items():
        if (target / f"{name}.pt").exists():
            continue
        middle, end = record(case, class_of(case.source, folder), target / f"{name}.pt")
        for label, arrays in (("5", middle), ("10", end)):
            values |= {f"{name}|{label}|{place}": array for place, array in enumerate(arrays)}
    np.savez_compressed(path, **values)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

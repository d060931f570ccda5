"""Record what authors' packages make of the cases of `tests/support/matrix_inputs.py`.

    python tools/record_matrices.py tests/goldens/matrices.npz

in the virtualenv of `record_modern.py`, and once more in one of Python 3.12 with
emerging-optimizers. It runs the cases that the file lacks, of installed packages. `adamuon` is not
a package: put `gpt2/models/optimizers` of the authors' repository (github.com/Chongjie-Si/AdaMuon,
commit 369f0b3) on PYTHONPATH. Of each case there are the parameters after all steps: of its package
in float32, under its name, and of the float64 of `matrix_formulas.py`; and either again with
parameters that are rounded to bfloat16 after each step.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import matrix_formulas  # pyright: ignore[reportMissingImports]
import numpy as np
import torch
from record_modern import (  # pyright: ignore[reportMissingImports]
    round_parameters,
    without_vision,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from matrix_inputs import (  # pyright: ignore[reportMissingImports]
    MATRIX_TABLE,
    MatrixCase,
)
from modern_inputs import train  # pyright: ignore[reportMissingImports]

VERSIONS = {"timm": "1.0.31", "pytorch_optimizer": "4.1.0", "emerging_optimizers": "0.3.0"}


def made_by(case: MatrixCase, params: Any, decay: float) -> Any:
    """Return the authors' optimizer."""
    package, name = case.package.split(":")
    arguments = case.arguments(decay, for_own_class=False)
    if name == "AdaMuon":
        return made_on_cpu(getattr(import_module(package), name), params, arguments)
    if name == "NorMuon":
        params = [{"params": params, "use_muon": True, **arguments}]
    return getattr(import_module(package), name)(params, **arguments)


def gathered(output: Any, update: Any, async_op: bool) -> Any:
    """Copy the update of the only rank to the output; return an object with `wait`."""
    output.copy_(update.view_as(output))
    return SimpleNamespace(wait=lambda: None)


def made_on_cpu(cls: Any, params: Any, arguments: dict[str, Any]) -> Any:
    """Build the authors' AdaMuon for one rank, with its buffers on the CPU and not on a GPU."""
    torch.distributed.all_gather_into_tensor = gathered
    empty, module = torch.empty, cast("Any", torch)
    module.empty = lambda *sizes, **options: empty(*sizes, **{**options, "device": "cpu"})
    try:
        return cls(params, **arguments)
    finally:
        module.empty = empty


def recorded(case: MatrixCase, decay: float, uses_formula: bool, rounded: bool) -> Any:
    """Return the parameters that a training of matrices ends with."""
    params = [each.detach().flatten(1).requires_grad_() for each in case.params_of(torch.float32)]
    if uses_formula:
        optimizer = getattr(matrix_formulas, case.formula)(
            params, **case.arguments(decay, for_own_class=True)
        )
    else:
        optimizer = made_by(case, params, decay)
    if rounded:
        round_parameters(optimizer, params)

    def gradients(step: int, dtype: torch.dtype) -> Any:
        return [grad.flatten(1) for grad in case.gradients_of(step, dtype)]

    final_params = train(optimizer, params, case.lr, gradients)
    return np.concatenate([each.numpy().ravel() for each in final_params])


def main(path: str) -> None:
    arrays: dict[str, Any] = dict(np.load(path)) if Path(path).exists() else {}
    installed = {name for name in (*VERSIONS, "adamuon") if find_spec(name)} | {"torch"}
    for name in installed & VERSIONS.keys():
        if version(name) != VERSIONS[name]:
            raise SystemExit(f"{name} is {version(name)}, not {VERSIONS[name]}")
    if "timm" in installed:
        without_vision()
    torch._dynamo.config.disable = True  # pyright: ignore[reportAttributeAccessIssue]
    for name, (case, decay) in MATRIX_TABLE.items():
        if f"{name}-float64" in arrays:
            continue
        if case.package and case.package.split(":")[0].split(".")[0] not in installed:
            continue
        for end, rounded in (("", False), ("-bfloat16", True)):
            arrays[f"{name}-float64{end}"] = recorded(case, decay, True, rounded)
            if case.package:
                arrays[f"{name}{end}"] = recorded(case, decay, False, rounded)
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])

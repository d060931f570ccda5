"""Record what packages make of the cases of `tests/support/modern_inputs.py`.

    python tools/record_modern.py tests/goldens/modern.npz

needs torch, lion-pytorch, timm, pytorch-optimizer, schedulefree, prodigyopt and transformers, of
the versions in VERSIONS, and none of this library. What the file has already stays: another
processor gives other last bits. What no package has is written out below in float64. The parameters
after all steps are kept, in float32 each, and their means, where evaluation has these; and once
more of a training whose parameters are rounded to bfloat16 after each step, and nothing else is;
and those of Prodigy in groups, with what it keeps for all of them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import matrix_formulas  # pyright: ignore[reportMissingImports]
import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from modern_inputs import (  # pyright: ignore[reportMissingImports]
    IN_GROUPS,
    TABLE,
    Case,
    groups_of,
    params_of,
    train,
    train_in_groups,
)

VERSIONS = {"lion-pytorch": "0.2.5", "timm": "1.0.31", "pytorch-optimizer": "4.1.0",
            "schedulefree": "1.4.1", "prodigyopt": "1.1.2", "transformers": "5.23.0"}  # fmt: skip


class Formula(matrix_formulas.Formula):
    """A paper's step in float64, with Adam's arguments."""

    defaults_of_class = {"weight_decay": 0.0, "betas": (0.9, 0.999), "eps": 1e-8}

    def adam(self, grad: Tensor, state: Any, betas: Any, eps: float) -> Tensor:
        """Return Adam's direction."""
        t, zero = state["t"], torch.zeros_like(grad)
        state["m"] = betas[0] * state.get("m", zero) + (1 - betas[0]) * grad
        state["v"] = betas[1] * state.get("v", zero) + (1 - betas[1]) * grad * grad
        root = (state["v"] / (1 - betas[1] ** t)).sqrt() + eps
        return state["m"] / (1 - betas[0] ** t) / root


class AdamWIndependent(Formula):
    """Wortsman et al. 2023."""

    def update(self, var: Tensor, grad: Tensor, state: Any, **group: Any) -> Tensor:
        step = self.adam(grad, state, group["betas"], group["eps"])
        return var - group["weight_decay"] * var - group["lr"] * step


class AdamWCautiousDecay(Formula):
    """Chen et al. 2025."""

    def update(self, var: Tensor, grad: Tensor, state: Any, **group: Any) -> Tensor:
        step = self.adam(grad, state, group["betas"], group["eps"])
        mask = (step * var > 0).double()
        return var - group["lr"] * (step + group["weight_decay"] * mask * var)


class AdamH(Formula):
    """Hyperball, 2026: a step of the radius times the rate, and back to the sphere."""

    def update(self, var: Tensor, grad: Tensor, state: Any, **group: Any) -> Tensor:
        step = self.adam(grad, state, group["betas"], group["eps"])
        radius = state.setdefault("radius", var.norm())
        new_var = var - group["lr"] * radius * step / step.norm()
        return new_var * radius / new_var.norm()


def class_of(case: Case) -> Any:
    """Return the authors' class."""
    package, name = case.package.split(":")
    return globals()[name] if package == "formula" else getattr(import_module(package), name)


def round_parameters(optimizer: Any, params: list[Tensor]) -> None:
    """Make an optimizer of float32 leave parameters of bfloat16."""
    step = optimizer.step

    @torch.no_grad()
    def rounded() -> None:
        step()
        for param in params:
            param.copy_(param.bfloat16())
            optimizer.state[param].pop("var", None)  # which formulas keep beside it

    optimizer.step = rounded


def without_vision() -> None:
    """Import timm's optimizers without its models, which need torchvision."""
    spec = import_module("importlib.util").find_spec("timm")
    package: Any = ModuleType("timm")
    package.__path__ = list(spec.submodule_search_locations)
    models: Any = ModuleType("timm.models")
    models.group_parameters = None
    sys.modules |= {"timm": package, "timm.models": models}


def main(path: str) -> None:
    for package, expected_version in VERSIONS.items():
        if version(package) != expected_version:
            raise SystemExit(f"{package} is {version(package)}, not {expected_version}")
    without_vision()
    arrays: dict[str, Any] = dict(np.load(path)) if Path(path).exists() else {}
    for name, (case, decay) in TABLE.items():
        if name in arrays:
            continue
        params = params_of(torch.float32)
        optimizer = class_of(case)(params, **case.arguments(decay, for_own_class=False))
        final_params = train(optimizer, params, case.lr)
        arrays[name] = np.concatenate([each.numpy().ravel() for each in final_params])
        if hasattr(optimizer, "eval"):
            optimizer.eval()
            means = [each.detach().numpy().ravel() for each in params]
            arrays[f"{name}-mean"] = np.concatenate(means)
        params = params_of(torch.float32)
        optimizer = class_of(case)(params, **case.arguments(decay, for_own_class=False))
        round_parameters(optimizer, params)
        final_params = train(optimizer, params, case.lr)
        arrays[f"{name}-bfloat16"] = np.concatenate([each.numpy().ravel() for each in final_params])
    name = "Prodigy in groups"
    if name not in arrays:
        params = params_of(torch.float32)
        optimizer = import_module("prodigyopt").Prodigy(groups_of(params), **IN_GROUPS)
        arrays[f"{name}-d"] = np.array(
            [*train_in_groups(optimizer, params, lambda: optimizer.param_groups[0]["d"])]
        )
        arrays[name] = np.concatenate([each.detach().numpy().ravel() for each in params])
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])

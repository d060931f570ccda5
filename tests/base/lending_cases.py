"""Attributes of torch's classes after imports and steps, tested in a separate process.

    python tests/base/lending_cases.py MODULE ...

imports the modules, and takes a step of each that has optimizers. Exits with 1, and prints what
differs, where torch's classes have changed.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

CLASSES: tuple[type, ...] = (torch.dtype, torch.Size, torch.Tensor, torch.nn.Parameter)


def attributes() -> list[dict[str, Any]]:
    """Return all attributes of torch's classes."""
    return [dict(vars(cls)) for cls in CLASSES]


def changed(initial: list[dict[str, Any]]) -> list[str]:
    """Return the names that were added, removed or changed."""
    names: list[str] = []
    for cls, old in zip(CLASSES, initial, strict=True):
        new = vars(cls)
        names += [f"{cls.__name__}.{k}" for k in {*old, *new} if old.get(k) is not new.get(k)]
    return sorted(names)


def _step_of_torchs_kind(module: Any) -> None:
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = module.Adam([param], lr=0.1)
    param.grad = torch.ones(2)
    optimizer.step()


def _step_of_keras(module: Any) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = module.optimizers.Adam(0.1)
    optimizer.minimize(lambda: model(torch.ones(2)).sum(), list(model.parameters()))
    optimizer.load_state_dict(optimizer.state_dict(), list(model.parameters()))


def _step_of_v1(module: Any) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = module.train.MomentumOptimizer(0.1, 0.9)
    optimizer.minimize(lambda: model(torch.ones(2)).sum(), var_list=list(model.parameters()))
    module.train.ExponentialMovingAverage(0.5).apply(list(model.parameters()))


def _step_of_loss(module: Any) -> None:
    model = torch.nn.Linear(2, 2).half()
    step = module.optimizers.optimize_loss(
        lambda: model(torch.ones(2).half()).float().sum(), "Adam", {}, lambda _: 0.1,
        list(model.parameters()), dtype="mixed", loss_scaling="Backoff",
    )  # fmt: skip
    step()


def _step_of_ranks(module: Any) -> None:
    module.Strategy().run(_step_of_keras, (importlib.import_module("thalweg.keras"),))


def _step_to_a_file(module: Any) -> None:
    import tempfile

    from thalweg.keras.optimizers import Adam

    model, optimizer = torch.nn.Linear(2, 2), Adam(0.1)
    optimizer.minimize(lambda: model(torch.ones(2)).sum(), list(model.parameters()))
    with tempfile.TemporaryDirectory() as folder:
        module.save(f"{folder}/run", optimizer=optimizer, module=model)
        module.restore(f"{folder}/run", optimizer=optimizer, module=model)
        module.tensorflow.save(f"{folder}/ckpt", optimizer=optimizer, variables=model)


STEPS = {
    "thalweg": lambda module: None,
    "thalweg.optim": _step_of_torchs_kind,
    "thalweg.optim.tensorflow": _step_of_torchs_kind,
    "thalweg.keras": _step_of_keras,
    "thalweg.v1": _step_of_v1,
    "thalweg.openseq2seq": _step_of_loss,
    "thalweg.checkpoint": _step_to_a_file,
    "thalweg.distribute": _step_of_ranks,
}


def main(names: list[str]) -> int:
    initial, differs = attributes(), False
    for name in names:
        STEPS[name](importlib.import_module(name))
        if changed(initial):
            sys.stdout.write(f"{name}: {' '.join(changed(initial))}\n")
            differs = True
    return differs


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

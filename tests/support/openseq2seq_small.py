"""Small trainings by `optimize_loss`, whose gradients are given to their steps."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Parameter

from thalweg.openseq2seq.optimizers import optimize_loss

HALF = torch.float16


def make_step(variables: Any, optimizer: Any = "SGD", rate: float = 0.5, **options: Any) -> Any:
    settings = {"dtype": "mixed", "loss_scaling": 1.0, **options}
    params = settings.pop("params", {})
    return optimize_loss(lambda: None, optimizer, params, lambda _: rate, variables, **settings)


def half_params(*sizes: int) -> list[Parameter]:
    return [Parameter(torch.ones(size, dtype=HALF)) for size in sizes]

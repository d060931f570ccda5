"""Modern rules in units of `torch.optim.AdamW(fused=True)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from drop_ins import beside_torch, make_step
from figure import Figure

from thalweg import optim
from thalweg._cli.bench import shapes, workload
from thalweg._cli.race.run import set_threads

DECAY = 0.01


class Kind(NamedTuple):
    """Target of a class.

    Attributes:
        target: Maximum step time over ResNet-50 in units of torch's fused AdamW.
        options: Arguments of the constructor.
    """

    target: float
    options: Mapping[str, Any] = {"weight_decay": DECAY}


KINDS = {
    "Lion": Kind(0.75),
    "ScheduleFreeAdamW": Kind(1.05),
    "AdEMAMix": Kind(1.25),
    "Adan": Kind(1.50),
    "LAMB": Kind(1.50),  # moves 40 bytes an element where AdamW moves 28
    "CautiousAdamW": Kind(1.50),
    "AdamH": Kind(1.90, {}),
}
SMALL_TARGET = 0.25


def modern() -> list[Figure]:
    """Measure each class on ResNet-50, and on 2,000 tensors of 1,000 elements."""
    figures: list[Figure] = []
    for shape_set, prefix in ((shapes.resnet50(), "modern"), (shapes.small2000(), "modern_small")):
        for name, kind in KINDS.items():
            params = workload.make_tensors(shape_set).variables
            step = make_step(getattr(optim, name), params, kind.options)
            torch_step = make_step(torch.optim.AdamW, params, {"fused": True})
            target = kind.target if prefix == "modern" else SMALL_TARGET
            figures.append(beside_torch(f"{prefix}_{name}", step, torch_step, target))
    return figures


# Parameters of a transformer of 4 blocks of width 128.
_BLOCK = ((384, 128), (384,), (128, 128), (128,), (512, 128), (512,), (128, 512), *((128,),) * 5)
_GPT = ((512, 128), (256, 128), *_BLOCK * 4, (128,), (128,))
# The most of `torch.optim.Adafactor` that a step takes over these shapes.
OF_TORCH_ADAFACTOR = {"matrix": (1.0, ((64, 64),)), "gpt": (0.7, _GPT)}


def rows() -> list[Figure]:
    """Measure Adafactor on ResNet-50 and on 3 x 3 kernels, then on one thread beside torch's."""
    figures = _rows_beside_adamw()
    with set_threads(1):
        for name, (target, sizes) in OF_TORCH_ADAFACTOR.items():
            params = workload.make_tensors(shapes.of(name, sizes)).variables
            step = make_step(optim.Adafactor, params)
            torch_step = make_step(torch.optim.Adafactor, params)
            figures.append(beside_torch(f"rows_of_torch_{name}", step, torch_step, target))
    return figures


def _rows_beside_adamw() -> list[Figure]:
    figures: list[Figure] = []
    for shape_set in (shapes.resnet50(), shapes.of("kernels", [(512, 512, 3, 3)])):
        params = workload.make_tensors(shape_set).variables
        step = make_step(optim.Adafactor, params)
        torch_step = make_step(torch.optim.AdamW, params, {"fused": True})
        figures.append(beside_torch(f"rows_Adafactor_{shape_set.name}", step, torch_step, 1.0))
    return figures

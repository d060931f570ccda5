"""Modern rules in units of `torch.optim.AdamW(fused=True)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from drop_ins import WARM_UP
from figure import Figure, compared
from torch import Tensor

from thalweg import optim
from thalweg._cli.bench import shapes, workload
from thalweg._cli.bench.timing import Contender, measure

RATE, DECAY = 1e-4, 0.01
SMALL = shapes.ShapeSet("small", ((1000,),) * 2000, (torch.float32,) * 2000)


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
    for shape_set, prefix in ((shapes.resnet50(), "modern"), (SMALL, "modern_small")):
        for name, kind in KINDS.items():
            params = workload.make_tensors(shape_set).variables
            contenders = [
                Contender("thalweg", _step(getattr(optim, name), params, kind.options)),
                Contender("torch", _step(torch.optim.AdamW, params, {"fused": True})),
            ]
            timings = measure(contenders, rounds=9, block=0.1)
            target = kind.target if prefix == "modern" else SMALL_TARGET
            figures.append(compared(f"{prefix}_{name}", timings, "thalweg", "torch", target))
    return figures


def rows() -> list[Figure]:
    """Measure Adafactor on ResNet-50, and on 3 x 3 kernels, whose rows have three elements."""
    figures: list[Figure] = []
    kernels = shapes.ShapeSet("kernels", ((512, 512, 3, 3),), (torch.float32,))
    for shape_set in (shapes.resnet50(), kernels):
        params = workload.make_tensors(shape_set).variables
        contenders = [
            Contender("thalweg", _step(optim.Adafactor, params, {})),
            Contender("torch", _step(torch.optim.AdamW, params, {"fused": True})),
        ]
        timings = measure(contenders, rounds=9, block=0.1)
        figures.append(
            compared(f"rows_Adafactor_{shape_set.name}", timings, "thalweg", "torch", 1.0)
        )
    return figures


def _step(cls: Any, parameters: list[Tensor], options: Mapping[str, Any]) -> Any:
    step = cls(parameters, lr=RATE, **options).step
    for _ in range(WARM_UP):
        step()
    return step

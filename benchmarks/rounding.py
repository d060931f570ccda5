"""AdamW on bfloat16 parameters and slots, rounded to the nearest and by random bits."""

from __future__ import annotations

from dataclasses import replace

import torch
from drop_ins import WARM_UP
from figure import Figure, compared

from thalweg import optim
from thalweg._cli.bench import shapes, workload
from thalweg._cli.bench.timing import Contender, measure

RATE, DECAY = 1e-4, 0.01
# Maximum additional time of random bits, in units of torch's step.
MAX_DIFFERENCE = 0.3
NEAREST, STOCHASTIC = "nearest", "stochastic"


def rounding() -> list[Figure]:
    """Measure both roundings on ResNet-50, in units of torch's fused AdamW on float32."""
    wide = workload.make_tensors(shapes.resnet50()).variables
    bfloat_params = [param.detach().to(torch.bfloat16).requires_grad_() for param in wide]
    for param, source in zip(bfloat_params, wide, strict=True):
        param.grad = None if source.grad is None else source.grad.to(torch.bfloat16)
    makers = {
        NEAREST: optim.AdamW(bfloat_params, lr=RATE, weight_decay=DECAY),
        STOCHASTIC: optim.AdamW(bfloat_params, lr=RATE, weight_decay=DECAY, round="stochastic"),
        "torch": torch.optim.AdamW(wide, lr=RATE, weight_decay=DECAY, fused=True),
    }
    for optimizer in makers.values():
        for _ in range(WARM_UP):
            optimizer.step()
    timings = measure(
        [Contender(name, optimizer.step) for name, optimizer in makers.items()], rounds=9, block=0.1
    )
    figures = [
        compared(f"rounding_{name}", timings, name, "torch", None) for name in (NEAREST, STOCHASTIC)
    ]
    nearest, stochastic = (figure.value for figure in figures)
    note = "stochastic less nearest, in steps of torch"
    difference = Figure("rounding_added", stochastic - nearest, MAX_DIFFERENCE, note=note)
    return [
        *figures,
        replace(difference, disturbance=max(figure.disturbance for figure in figures)),
    ]

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
ADDED = 0.3  # what random bits may add, of the time of torch's step
NEAREST, STOCHASTIC = "nearest", "stochastic"


def rounding() -> list[Figure]:
    """Both on ResNet-50, in units of `torch.optim.AdamW(fused=True)` on float32."""
    wide = workload.make_tensors(shapes.resnet50()).variables
    made = [each.detach().to(torch.bfloat16).requires_grad_() for each in wide]
    for each, other in zip(made, wide, strict=True):
        each.grad = None if other.grad is None else other.grad.to(torch.bfloat16)
    makers = {
        NEAREST: optim.AdamW(made, lr=RATE, weight_decay=DECAY),
        STOCHASTIC: optim.AdamW(made, lr=RATE, weight_decay=DECAY, round="stochastic"),
        "torch": torch.optim.AdamW(wide, lr=RATE, weight_decay=DECAY, fused=True),
    }
    for optimizer in makers.values():
        for _ in range(WARM_UP):
            optimizer.step()
    timings = measure(
        [Contender(name, each.step) for name, each in makers.items()], rounds=9, block=0.1
    )
    both = [
        compared(f"rounding_{name}", timings, name, "torch", None) for name in (NEAREST, STOCHASTIC)
    ]
    nearest, drawn = (each.value for each in both)
    note = "stochastic less nearest, in steps of torch"
    added = Figure("rounding_added", drawn - nearest, ADDED, note=note)
    return [*both, replace(added, disturbance=max(each.disturbance for each in both))]

"""AdamW on bfloat16 parameters and slots, rounded to the nearest and by random bits."""

from __future__ import annotations

from dataclasses import replace

import torch
from drop_ins import DECAY, RATE, WARM_UP
from eight_bits import as_bfloat16
from figure import Figure, compared

from thalweg import optim
from thalweg._cli.bench import shapes, workload
from thalweg._cli.bench.timing import Contender, measure

# Maximum additional time of random bits, in units of torch's step.
MAX_DIFFERENCE = 0.3
NEAREST, STOCHASTIC = "nearest", "stochastic"


def rounding() -> list[Figure]:
    """Measure both roundings on ResNet-50, in units of torch's fused AdamW on float32."""
    wide = workload.make_tensors(shapes.resnet50()).variables
    bfloat_params = [as_bfloat16(param) for param in wide]
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

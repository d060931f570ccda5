"""AdamW with slots of 8 bits beside `torch.optim.AdamW(fused=True)`, whose slots have 32."""

from __future__ import annotations

from typing import Any

import torch
from drop_ins import WARM_UP
from figure import Figure, compared
from torch import Tensor

from thalweg import optim
from thalweg._cli.bench import shapes, workload
from thalweg._cli.bench.timing import Contender, measure

RATE, DECAY = 1e-4, 0.01
SMALL = shapes.ShapeSet("small", ((5000,),) * 2000, (torch.float32,) * 2000)
STORAGES = ("8bit", "linear8")
TARGETS = {"eight_bits": 0.9, "eight_bits_small": 0.30}  # of the time of torch's step


def eight_bits() -> list[Figure]:
    """Each storage on ResNet-50, and on 2,000 tensors of 5,000."""
    figures: list[Figure] = []
    for chosen, prefix in ((shapes.resnet50(), "eight_bits"), (SMALL, "eight_bits_small")):
        for storage in STORAGES:
            made = workload.make_tensors(chosen).variables
            own = optim.AdamW(made, lr=RATE, weight_decay=DECAY, state_storage=storage)
            theirs = torch.optim.AdamW(made, lr=RATE, weight_decay=DECAY, fused=True)
            contenders = [Contender("thalweg", _warm(own)), Contender("torch", _warm(theirs))]
            timings = measure(contenders, rounds=9, block=0.1)
            name, target = f"{prefix}_{storage}", TARGETS[prefix]
            figures.append(compared(name, timings, "thalweg", "torch", target))
            figures.append(
                Figure(f"{name}_bytes", _bytes(own, made), unit="B", note="of slots, per element")
            )
    return figures


def split_weights() -> list[Figure]:
    """Weights in three bytes and states in 8 bits, gradients of bfloat16, on the same."""
    figures: list[Figure] = []
    for chosen, name, target in (
        (shapes.resnet50(), "split_weights", 1.3), (SMALL, "split_weights_small", 0.30),
    ):  # fmt: skip
        wide, narrow = (workload.make_tensors(chosen).variables for _ in range(2))
        narrow = [_as_bfloat(each) for each in narrow]
        own = optim.AdamW(
            narrow, lr=RATE, weight_decay=DECAY, weights="split", state_storage="8bit"
        )
        theirs = torch.optim.AdamW(wide, lr=RATE, weight_decay=DECAY, fused=True)
        contenders = [Contender("thalweg", _warm(own)), Contender("torch", _warm(theirs))]
        timings = measure(contenders, rounds=9, block=0.1)
        figures.append(compared(name, timings, "thalweg", "torch", target))
        held = _bytes(own, narrow)
        figures.append(Figure(f"{name}_bytes", held, unit="B", note="of states, per element"))
    return figures


def _as_bfloat(tensor: Tensor) -> Tensor:
    made = tensor.detach().to(torch.bfloat16).requires_grad_()
    if tensor.grad is not None:
        made.grad = tensor.grad.to(torch.bfloat16)
    return made


def _warm(optimizer: Any) -> Any:
    for _ in range(WARM_UP):
        optimizer.step()
    return optimizer.step


def _bytes(optimizer: Any, parameters: list[Tensor]) -> float:
    """How many the slots of a parameter's element have."""
    slots = [x for own in optimizer.state.values() for x in own.values() if x.dim()]
    return sum(slot.nbytes for slot in slots) / sum(each.numel() for each in parameters)

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
    """Measure each storage on ResNet-50, and on 2,000 tensors of 5,000 elements."""
    figures: list[Figure] = []
    for shape_set, prefix in ((shapes.resnet50(), "eight_bits"), (SMALL, "eight_bits_small")):
        for storage in STORAGES:
            params = workload.make_tensors(shape_set).variables
            optimizer = optim.AdamW(params, lr=RATE, weight_decay=DECAY, state_storage=storage)
            torch_optimizer = torch.optim.AdamW(params, lr=RATE, weight_decay=DECAY, fused=True)
            contenders = [
                Contender("thalweg", _warm(optimizer)),
                Contender("torch", _warm(torch_optimizer)),
            ]
            timings = measure(contenders, rounds=9, block=0.1)
            name, target = f"{prefix}_{storage}", TARGETS[prefix]
            figures.append(compared(name, timings, "thalweg", "torch", target))
            figures.append(
                Figure(
                    f"{name}_bytes",
                    _bytes(optimizer, params),
                    unit="B",
                    note="of slots, per element",
                )
            )
    return figures


def split_weights() -> list[Figure]:
    """Measure split weights of three bytes with 8-bit states and bfloat16 gradients."""
    figures: list[Figure] = []
    for shape_set, name, target in (
        (shapes.resnet50(), "split_weights", 1.3), (SMALL, "split_weights_small", 0.30),
    ):  # fmt: skip
        wide, narrow = (workload.make_tensors(shape_set).variables for _ in range(2))
        narrow = [_as_bfloat(param) for param in narrow]
        optimizer = optim.AdamW(
            narrow, lr=RATE, weight_decay=DECAY, weights="split", state_storage="8bit"
        )
        torch_optimizer = torch.optim.AdamW(wide, lr=RATE, weight_decay=DECAY, fused=True)
        contenders = [
            Contender("thalweg", _warm(optimizer)),
            Contender("torch", _warm(torch_optimizer)),
        ]
        timings = measure(contenders, rounds=9, block=0.1)
        figures.append(compared(name, timings, "thalweg", "torch", target))
        state_bytes = _bytes(optimizer, narrow)
        figures.append(
            Figure(f"{name}_bytes", state_bytes, unit="B", note="of states, per element")
        )
    return figures


def _as_bfloat(tensor: Tensor) -> Tensor:
    converted_tensor = tensor.detach().to(torch.bfloat16).requires_grad_()
    if tensor.grad is not None:
        converted_tensor.grad = tensor.grad.to(torch.bfloat16)
    return converted_tensor


def _warm(optimizer: Any) -> Any:
    for _ in range(WARM_UP):
        optimizer.step()
    return optimizer.step


def _bytes(optimizer: Any, parameters: list[Tensor]) -> float:
    """Return the bytes of slots per parameter element."""
    slots = [x for state in optimizer.state.values() for x in state.values() if x.dim()]
    return sum(slot.nbytes for slot in slots) / sum(param.numel() for param in parameters)

"""AdamW with slots of 8 bits beside `torch.optim.AdamW(fused=True)`, whose slots have 32."""

from __future__ import annotations

from typing import Any

import torch
from drop_ins import DECAY, RATE, WARM_UP, beside_torch
from figure import Figure
from torch import Tensor

from thalweg import optim
from thalweg._cli.bench import shapes, workload

SMALL = shapes.of("small", [(5000,)] * 2000)
STORAGES = ("8bit", "linear8")
TARGETS = {"eight_bits": 0.9, "eight_bits_small": 0.30}  # of the time of torch's step


def eight_bits() -> list[Figure]:
    """Measure each storage on ResNet-50, and on 2,000 tensors of 5,000 elements."""
    figures: list[Figure] = []
    for shape_set, prefix in ((shapes.resnet50(), "eight_bits"), (SMALL, "eight_bits_small")):
        for storage in STORAGES:
            params = workload.make_tensors(shape_set).variables
            optimizer = optim.AdamW(params, lr=RATE, weight_decay=DECAY, state_storage=storage)
            figures += _compare(f"{prefix}_{storage}", optimizer, params, TARGETS[prefix], "slots")
    return figures


def split_weights() -> list[Figure]:
    """Measure split weights of three bytes with 8-bit states and bfloat16 gradients."""
    figures: list[Figure] = []
    for shape_set, name, target in (
        (shapes.resnet50(), "split_weights", 1.3), (SMALL, "split_weights_small", 0.30),
    ):  # fmt: skip
        wide = workload.make_tensors(shape_set).variables
        narrow = [as_bfloat16(param) for param in workload.make_tensors(shape_set).variables]
        optimizer = optim.AdamW(
            narrow, lr=RATE, weight_decay=DECAY, weights="split", state_storage="8bit"
        )
        figures += _compare(name, optimizer, wide, target, "states")
    return figures


def as_bfloat16(param: Tensor) -> Tensor:
    """Return a parameter of bfloat16 with the values and the gradient of `param`."""
    narrow_param = param.detach().to(torch.bfloat16).requires_grad_()
    narrow_param.grad = None if param.grad is None else param.grad.to(torch.bfloat16)
    return narrow_param


def _compare(
    name: str, optimizer: Any, torch_params: list[Tensor], target: float, noun: str
) -> list[Figure]:
    """Return figures of time in units of torch's step on `torch_params`, and of bytes of state."""
    torch_optimizer = torch.optim.AdamW(torch_params, lr=RATE, weight_decay=DECAY, fused=True)
    for _ in range(WARM_UP):
        optimizer.step()
        torch_optimizer.step()
    figure = beside_torch(name, optimizer.step, torch_optimizer.step, target)
    slots = [x for state in optimizer.state.values() for x in state.values() if x.dim()]
    size = sum(slot.nbytes for slot in slots) / sum(param.numel() for param in torch_params)
    return [figure, Figure(f"{name}_bytes", size, unit="B", note=f"of {noun}, per element")]

"""A small training that every integration repeats: its model, its data, and the plain loop."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from thalweg import optim

Make = Callable[[Any], Any]

# One that stands before a class of torch's, one with TensorFlow's numbers; each under a schedule.
OPTIMIZERS: dict[str, Make] = {
    "AdamW": lambda params: optim.AdamW(params, lr=0.05),
    "tensorflow.Adam": lambda params: optim.tensorflow.Adam(params, lr=0.05),
}


def model() -> nn.Module:
    """A model, the same each time."""
    made = torch.Generator().manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    with torch.no_grad():
        for param in module.parameters():
            param.copy_(torch.randn(param.shape, generator=made) / 2)
    return module


def data(count: int = 8, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Batches, the same each time."""
    made = torch.Generator().manual_seed(1)
    inputs = [torch.randn(size, 4, generator=made) for _ in range(count)]
    return [(x, x.sin().sum(1, keepdim=True)) for x in inputs]


def loss_of(module: nn.Module, batch: Any) -> Tensor:
    """What is made small."""
    x, y = batch
    return mse_loss(module(x), y)


def schedule(optimizer: Any) -> Any:
    """A rate that moves with every step."""
    return optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def trained(
    make: Make, batches: Any, *, accumulate: int = 1, clip: float | None = None
) -> tuple[nn.Module, Any]:
    """What the plain loop makes of the model."""
    module = model()
    optimizer = make(module.parameters())
    rate = schedule(optimizer)
    for index, batch in enumerate(batches, start=1):
        (loss_of(module, batch) / accumulate).backward()
        if index % accumulate == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
            rate.step()
            optimizer.zero_grad()
    return module, optimizer


def numbers(module: nn.Module, optimizer: Any) -> list[Tensor]:
    """All parameters, and their state."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    state = [optimizer.state[param] for param in params]
    own = [torch.as_tensor(value) for each in state for value in each.values()]
    return [*(param.detach() for param in module.parameters()), *own]


def assert_same_training(one: tuple[nn.Module, Any], other: tuple[nn.Module, Any]) -> None:
    """Assert that models and states have the same bits."""
    found, wanted = numbers(*one), numbers(*other)
    assert len(found) == len(wanted)
    for got, expected in zip(found, wanted, strict=True):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


def on(module: nn.Module, optimizer: Any) -> list[Tensor]:
    """What four further steps make of them."""
    for batch in data()[4:]:
        loss_of(module, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return numbers(module, optimizer)


def send_on(queue: Any, given: bytes) -> None:
    """The same of pairs that were sent to another process."""
    queue.put([[each.tolist() for each in on(*pair)] for pair in pickle.loads(given)])

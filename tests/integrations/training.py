"""A small training for every integration: its model, its data, and the plain loop."""

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
    """Return a model, the same each time."""
    generator = torch.Generator().manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    with torch.no_grad():
        for param in module.parameters():
            param.copy_(torch.randn(param.shape, generator=generator) / 2)
    return module


def data(count: int = 8, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Return batches, the same each time."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(size, 4, generator=generator) for _ in range(count)]
    return [(x, x.sin().sum(1, keepdim=True)) for x in inputs]


def loss_of(module: nn.Module, batch: Any) -> Tensor:
    """Return the loss of a batch."""
    x, y = batch
    return mse_loss(module(x), y)


def schedule(optimizer: Any) -> Any:
    """Return a schedule that changes the rate in every step."""
    return optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def trained(
    make: Make, batches: Any, *, accumulate: int = 1, clip: float | None = None
) -> tuple[nn.Module, Any]:
    """Train the model with the plain loop; return it with its optimizer."""
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
    """Return all parameters, and their state."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    state = [optimizer.state[param] for param in params]
    tensors = [torch.as_tensor(value) for slots in state for value in slots.values()]
    return [*(param.detach() for param in module.parameters()), *tensors]


def assert_same_training(first: tuple[nn.Module, Any], second: tuple[nn.Module, Any]) -> None:
    """Assert that models and states have the same bits."""
    actual, references = numbers(*first), numbers(*second)
    assert len(actual) == len(references)
    for got, expected in zip(actual, references, strict=True):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


def on(module: nn.Module, optimizer: Any) -> list[Tensor]:
    """Take four further steps; return all parameters and states."""
    for batch in data()[4:]:
        loss_of(module, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return numbers(module, optimizer)


def send_on(queue: Any, content: bytes) -> None:
    """Take four further steps of pickled pairs, and put the numbers into the queue."""
    queue.put([[tensor.tolist() for tensor in on(*pair)] for pair in pickle.loads(content)])

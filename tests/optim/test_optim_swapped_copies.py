"""Copies and states inside of `swapped()`, where parameters are averages."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg import checkpoint, optim
from thalweg.errors import FailedPreconditionError
from thalweg.optim import tensorflow

Pair = tuple[torch.nn.Module, Any]


def mixed(params: Any, lr: float, **options: Any) -> Any:
    return optim.Mixed([{"params": params, "rule": "AdamW", "lr": lr}], **options)


CLASSES: list[tuple[str, Any, dict[str, Any]]] = [
    ("SGD", optim.SGD, {"ema_decay": 0.5}),
    ("in_backward", optim.SGD, {"ema_decay": 0.5, "in_backward": True}),
    ("tensorflow", tensorflow.Adam, {"ema_decay": 0.5}),
    ("Mixed", mixed, {"ema_decay": 0.5}),
    ("schedule-free", optim.ScheduleFreeSGD, {}),
    ("schedule-free Adam", optim.ScheduleFreeAdamW, {}),
]

ATTEMPTS: dict[str, Callable[[torch.nn.Module, Any], object]] = {
    "copy": lambda _, optimizer: copy.copy(optimizer),
    "deepcopy": lambda module, optimizer: copy.deepcopy((module, optimizer)),
    "pickle": lambda module, optimizer: pickle.dumps((module, optimizer)),
    "torch.save": lambda module, optimizer: torch.save((module, optimizer), io.BytesIO()),
    "state_dict": lambda _, optimizer: optimizer.state_dict(),
    "full_precision": lambda _, optimizer: optim.full_precision(optimizer),
    "step": lambda _, optimizer: optimizer.step(),
}


def trained(make: Any, options: dict[str, Any], steps: int = 3) -> Pair:
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
    optimizer = make(list(module.parameters()), lr=0.1, **options)
    for _ in range(steps):
        backward(module)
        optimizer.step()
    return module, optimizer


def backward(module: torch.nn.Module) -> None:
    module.zero_grad()
    module(torch.arange(6.0).view(2, 3)).square().sum().backward()


def values_of(pair: Pair) -> list[torch.Tensor]:
    states = pair[1].state_dict()["state"].values()
    tensors = [*pair[0].parameters(), *(x for state in states for x in state.values())]
    return [x.detach().clone() for x in tensors if isinstance(x, torch.Tensor)]


by_class = pytest.mark.parametrize(
    ("make", "options"), [row[1:] for row in CLASSES], ids=[row[0] for row in CLASSES]
)


@pytest.mark.one_in(3)
@by_class
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_copies_raise_inside_swapped_and_work_outside(
    make: Any, options: dict[str, Any], attempt: str
) -> None:
    pair = trained(make, options)
    previous = values_of(pair)
    with pair[1].swapped(), pytest.raises(FailedPreconditionError, match=r"swapped\(\)"):
        ATTEMPTS[attempt](*pair)
    torch.testing.assert_close(values_of(pair), previous, rtol=0, atol=0)
    ATTEMPTS[attempt](*pair)


@by_class
def test_load_inside_swapped_raises(make: Any, options: dict[str, Any], tmp_path: Path) -> None:
    pair = trained(make, options)
    state_dict = trained(make, options, steps=5)[1].state_dict()
    checkpoint.save(tmp_path / "file", optimizer=pair[1], module=pair[0])
    previous = values_of(pair)
    with pair[1].swapped():
        with pytest.raises(FailedPreconditionError, match=r"inside of swapped\(\)"):
            pair[1].load_state_dict(state_dict)
        with pytest.raises(FailedPreconditionError, match=r"inside of swapped\(\)"):
            checkpoint.restore(tmp_path / "file", optimizer=pair[1], module=pair[0])
    torch.testing.assert_close(values_of(pair), previous, rtol=0, atol=0)


@by_class
def test_model_copied_inside_swapped_has_the_means(make: Any, options: dict[str, Any]) -> None:
    module, optimizer = trained(make, options)
    with optimizer.swapped():
        means = [param.detach().clone() for param in module.parameters()]
        copied = copy.deepcopy(module)
    torch.testing.assert_close([*map(torch.detach, copied.parameters())], means, rtol=0, atol=0)


def test_in_backward_pass_inside_swapped_raises() -> None:
    pair = trained(optim.SGD, {"ema_decay": 0.5, "in_backward": True})
    previous = values_of(pair)
    with pair[1].swapped(), pytest.raises(FailedPreconditionError, match="step inside of swapped"):
        backward(pair[0])
    torch.testing.assert_close(values_of(pair), previous, rtol=0, atol=0)

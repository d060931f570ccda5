"""Guard that compares the tensors of a step with those of the step before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bit_comparison import assert_same
from thalweg import Variable
from thalweg._engines import dense_plan
from thalweg._engines import metadata_guard as likeness
from thalweg._engines.metadata_guard import MetadataGuard
from thalweg.keras.optimizers import Adam

DIFFERENT: dict[str, Callable[[], Any]] = {
    "another shape": lambda: torch.ones(3, 2),
    "another rank": lambda: torch.ones(6),
    "other strides": lambda: torch.ones(3, 2).t(),
    "another dtype": lambda: torch.ones(2, 3).double(),
    "another device": lambda: torch.ones(2, 3, device="meta"),
    "a gradient of its own": lambda: torch.ones(2, 3, requires_grad=True),
    "another class": lambda: torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
    "rows": lambda: torch.ones(2, 3).to_sparse(),
    "a deferred sign": lambda: torch.ones(2, 3, dtype=torch.complex64).conj().imag,
    "no tensor": lambda: None,
    "an array": lambda: torch.ones(2, 3).numpy(),
}


@pytest.mark.parametrize("make", DIFFERENT.values(), ids=DIFFERENT)
@pytest.mark.parametrize("place", [0, 1])
def test_different_metadata_is_detected(make: Callable[..., Any], place: int) -> None:
    guard = MetadataGuard([torch.zeros(2, 3), torch.zeros(2, 3)])
    tensors: list[Any] = [torch.ones(2, 3), torch.ones(2, 3)]
    assert guard.holds(tensors)
    tensors[place] = make()
    assert not guard.holds(tensors)


def test_added_removed_and_repeated_tensors_differ() -> None:
    guard = MetadataGuard([torch.zeros(2), torch.zeros(2)])
    first, two = torch.ones(2), torch.ones(2)
    assert guard.holds([first, two])
    assert not guard.holds([first])
    assert not guard.holds([first, first])
    assert not guard.holds([first, two, torch.ones(2)])
    assert not MetadataGuard().holds([])


def _trained(gradients: list[list[Tensor]]) -> list[Tensor]:
    variables = [Variable(torch.full((2, 3), 0.5)) for _ in gradients[0]]
    optimizer = Adam(0.1)
    for step in gradients:
        optimizer.apply_gradients(zip(step, variables, strict=True))
    return [var.value() for var in variables]


def _refusing(*args: Any, **options: Any) -> None:
    raise TypeError("another interface")


@pytest.mark.parametrize("guards", [None, _refusing])
def test_fallback_comparison_takes_the_same_steps(monkeypatch, guards) -> None:
    generator = torch.Generator().manual_seed(3)
    gradients = [[torch.randn(2, 3, generator=generator) for _ in range(4)] for _ in range(3)]
    expected = _trained(gradients)
    monkeypatch.setattr(likeness, "TensorGuards", guards)
    assert not MetadataGuard(gradients[0]).holds(gradients[0])
    assert_same(_trained(gradients), expected)


def test_a_replayed_step_skips_the_full_checks(monkeypatch) -> None:
    variables = [Variable(torch.ones(3)) for _ in range(2)]
    optimizer = Adam(0.1)

    def step() -> None:
        optimizer.apply_gradients([(torch.ones(3), var) for var in variables])

    step()
    step()
    looks = []
    owners = {"_read_layouts": dense_plan, "_has_planned_gradients": dense_plan.DensePlan}
    for name, owner in owners.items():
        monkeypatch.setattr(owner, name, lambda *args, name=name: looks.append(name))
    step()
    assert looks == []

"""Replayed steps of matrix rules: equal to steps that are not replayed."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from pairwise import cover_values
from replay_twins import are_same, count_replays, diff, look_carefully, params, set_grads, snapshot
from thalweg import optim
from thalweg._engines import torch_layout_probe

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
RULES = ["Muon", "NorMuon", "AdaMuon", "MuonH", "SOAP"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"ema_decay": 0.9},
    {"state_dtype": torch.bfloat16},
    {"clip_grad_norm": 0.5},
    {"clip_grad_value": 0.5},
    {"state_storage": "8bit"},
    {"row_floor": 0.5},
    {"row_floor": 0.5, "masters": True, "clip_grad_norm": 0.5},
    {"accumulate": 2},
    {"accumulate": 2, "clip_grad_norm": 0.5, "clip_grad_value": 1.0},
]


def make_optimizer(rule: str, **options: Any) -> tuple[Any, list[Parameter]]:
    """Return an optimizer with two groups of matrices and one of vectors, and its parameters."""
    shape, layout = (3, 4, 5), "batch=1 rows=2"
    if "row_floor" in options:  # for parameters of two dimensions
        shape, layout = (12, 5), "rows=2"
    weights = [*params(2, (6, 4)), *params(2, shape), *params(2)]
    groups = [
        {"params": weights[:2], "rule": rule, "lr": 0.02},
        {"params": weights[2:4], "rule": rule, "layout": layout, "lr": 0.01},
        {"params": weights[4:], "rule": "AdamW"},
    ]
    return optim.Mixed(groups, **options), weights


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("rule", "options"), cover_values(product(RULES, OPTIONS), 2), ids=str)
def test_passes_are_replayed(rule: str, options: dict[str, Any]) -> None:
    sides = [make_optimizer(rule, **options) for _ in range(2)]
    for step in range(6 * options.get("accumulate", 1)):
        for is_twin, (opt, weights) in enumerate(sides):
            set_grads(weights, step)
            opt.param_groups[0]["lr"] = 0.02 / (1 + step)
            if is_twin:
                look_carefully(opt)
            opt.step()
    assert count_replays(sides[0][0]) == 4
    for (key, actual), (_, expected) in zip(*(snapshot(*side) for side in sides), strict=True):
        assert are_same(actual, expected), key


def test_recurring_sets_of_gradients_are_replayed() -> None:
    sides = [make_optimizer("Muon") for _ in range(2)]
    replays: list[int] = []
    for step in range(12):
        for is_twin, (opt, weights) in enumerate(sides):
            set_grads(weights, step, {0, 2} if step % 2 else {5})
            if is_twin:
                look_carefully(opt)
            opt.step()
            replays.append(count_replays(opt))
    assert replays[-4:] == [3, 0, 3, 0]
    for (key, actual), (_, expected) in zip(*(snapshot(*side) for side in sides), strict=True):
        assert are_same(actual, expected), key


@pytest.mark.parametrize("rule", RULES)
def test_changes_between_steps_are_noticed(rule: str) -> None:
    def make(seed: int) -> tuple[Any, list[Parameter]]:
        return make_optimizer(rule, **random.Random(seed).choice(OPTIONS))

    assert [diff(make, seed, 12) for seed in range(2)] == [""] * 2


def test_failing_stage_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    opt, weights = make_optimizer("Muon")
    for step in range(4):
        set_grads(weights, step)
        opt.step()
    previous_weights = [weight.detach().clone() for weight in weights]

    def fail(*_: Any, **kwargs: Any) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "baddbmm", fail)
        with pytest.raises(MemoryError):
            opt.step()
    assert all(map(torch.equal, previous_weights, weights))
    opt.step()
    assert not torch.equal(previous_weights[0], weights[0])

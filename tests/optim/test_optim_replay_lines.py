"""Replayed steps of rules with measures of rows and columns: equal to other steps."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from pairwise import cover_values
from replay_twins import OPTIONS, are_same, count_replays, diff, set_grads, snapshot
from thalweg import optim
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
# Matrices of up to 8 rows and columns have kernels of their own, and are not replayed.
SHAPES = [(9, 12), (3, 4, 17), (130, 1030), (20, 1), (1, 20), (7,), (9, 12)]
Maker = Callable[..., Any]


def in_groups(name: str, **options: Any) -> Maker:
    def make(weights: list[Parameter], **extras: Any) -> Any:
        groups = [{"params": weights[::2], **options}, {"params": weights[1::2], "lr": 0.05}]
        return getattr(optim, name)([group for group in groups if group["params"]], **extras)

    return make


def mixed(weights: list[Parameter], **extras: Any) -> Any:
    groups = [{"params": weights[::2], "rule": "SM3"}, {"params": weights[1::2], "rule": "AdamW"}]
    return optim.Mixed([group for group in groups if group["params"]], **extras)


MAKERS: dict[str, Maker] = {
    "Adafactor": lambda weights, **extras: optim.Adafactor(weights, **extras),
    "Adafactor in groups": in_groups("Adafactor", lr=0.1, d=1.3, weight_decay=0.01, maximize=True),
    "AdafactorHF": lambda weights, **extras: optim.AdafactorHF(weights, **extras),
    "AdafactorHF with a mean": lambda weights, **extras: optim.AdafactorHF(
        weights, lr=0.01, relative_step=False, beta1=0.9, **extras
    ),
    "SM3": lambda weights, **extras: optim.SM3(weights, lr=0.1, **extras),
    "SM3 with a mean": in_groups("SM3", lr=0.1, momentum=0.9, beta=0.5),
    "beside others": mixed,
}


def make_params(dtype: torch.dtype = torch.float32) -> list[Parameter]:
    torch.manual_seed(0)
    return [Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def compare(make: Maker, dtype: torch.dtype, prepare: Callable[..., None], **extras: Any) -> int:
    """Compare an optimizer with a twin that does not replay; return the replayed steps."""
    sides: list[tuple[Any, list[Parameter]]] = []
    for _ in range(2):
        weights = make_params(dtype)
        sides.append((make(weights, **extras), weights))
    for step in range(6 * extras.get("accumulate", 1)):
        for is_twin, (opt, weights) in enumerate(sides):
            if extras.get("fused_unscale"):
                opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(4.0 + step // 4)
            prepare(opt, weights, step)
            if is_twin:
                opt.step_cache.forget_replay()
            opt.step()
        for (key, actual), (_, expected) in zip(*(snapshot(*run) for run in sides), strict=True):
            assert are_same(actual, expected), (key, step)
    return count_replays(sides[0][0])


def schedule(opt: Any, weights: list[Parameter], step: int) -> None:
    set_grads(weights, step)
    for group in opt.param_groups:
        if group.get("lr") is not None:
            group["lr"] *= 0.9


@pytest.mark.parametrize("name", MAKERS)
def test_lines_are_replayed(name: str) -> None:
    assert compare(MAKERS[name], torch.float32, schedule) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "dtype"),
    cover_values(product(MAKERS, OPTIONS, (torch.float32, torch.float64, torch.bfloat16)), 4),
    ids=str,
)
def test_options_are_replayed(
    name: str, options: tuple[dict[str, Any], int], dtype: torch.dtype
) -> None:
    assert compare(MAKERS[name], dtype, schedule, **options[0]) == 4


@pytest.mark.parametrize("value", [0.0, torch.nan, -torch.inf, 1e-42, 3e38])
@pytest.mark.parametrize("name", ["Adafactor", "AdafactorHF", "SM3 with a mean"])
def test_extreme_values_are_replayed(name: str, value: float) -> None:
    def prepare(opt: Any, weights: list[Parameter], step: int) -> None:
        schedule(opt, weights, step)
        if step == 4:
            weights[2].grad = torch.full_like(weights[2], value)
            weights[0].grad[:3] = value  # pyright: ignore[reportOptionalSubscript]

    assert compare(MAKERS[name], torch.float32, prepare) == 4


def make_random(seed: int) -> tuple[Any, list[Parameter]]:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtypes = [torch.float32, torch.float32, torch.float64, torch.bfloat16]
    shapes = [*SHAPES, (1, 1), (3, 3), (0, 2), (2, 1, 1)]
    weights = [
        Parameter(torch.randn(rng.choice(shapes)).to(rng.choice(dtypes)))
        for _ in range(rng.randint(2, 6))
    ]
    extras, _ = rng.choice(OPTIONS)
    return MAKERS[rng.choice([*MAKERS])](weights, **extras), weights


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(12))
def test_random_changes_equal_careful_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not diff(make_random, seed)

"""Replayed steps of rules with reductions: equal to steps that are not replayed."""

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
from replay_twins import OPTIONS, SHAPES, are_same, count_replays, diff, params, set_grads, snapshot
from thalweg import optim
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe
from thalweg.rules import LARS, NESTEROV_LARS, NOVOGRAD

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)


def maker_of(name: str, **options: Any) -> Callable[..., Any]:
    return lambda weights, **extras: getattr(optim, name)(weights, lr=0.01, **options, **extras)


def in_groups(name: str, **options: Any) -> Callable[..., Any]:
    def make(weights: list[Parameter], **extras: Any) -> Any:
        groups = [{"params": weights[::2]}, {"params": weights[1::2], "lr": 0.05, **options}]
        return getattr(optim, name)([group for group in groups if group["params"]], **extras)

    return make


def mixed(weights: list[Parameter], **extras: Any) -> Any:
    groups = [
        {"params": weights[::3], "rule": "LAMB", "weight_decay": 0.1},
        {"params": weights[1::3], "rule": "AdamW"},
        {"params": weights[2::3], "rule": "CautiousAdamW"},
    ]
    return optim.Mixed([group for group in groups if group["params"]], **extras)


def lars(weights: list[Parameter], **extras: Any) -> Any:
    groups = [{"params": weights[::2]}, {"params": weights[1::2], "adaptive": 0.0}]
    return optim.RuleOptimizer([group for group in groups if group["params"]], LARS, **extras)


MAKERS: dict[str, Callable[..., Any]] = {
    "LAMB": maker_of("LAMB"),
    "LAMB that always adapts": maker_of(
        "LAMB", weight_decay=0.0, always_adapt=True, trust_clip=True
    ),
    "StableAdamW": maker_of("StableAdamW"),
    "AdamH": maker_of("AdamH"),
    "CautiousAdamW": maker_of("CautiousAdamW"),
    "LAMB in groups": in_groups("LAMB", weight_decay=0.0),
    "MARS": maker_of("MARS", weight_decay=0.1),
    "MARS of Lion's kind": maker_of("MARS", mars_type="lion", betas_1d=(0.8, 0.9)),
    "MARS in groups": in_groups("MARS", optimize_1d=True, mars_type="lion"),
    "StableAdamW in groups": in_groups("StableAdamW", betas=(0.8, 0.9)),
    "beside others": mixed,
    "cautious": maker_of("AdamW", cautious=True),
    "cautious decay": maker_of("AdamW", cautious=True, cautious_decay=True, weight_decay=0.1),
    "trust ratio": maker_of("NAdam", trust_ratio=True),
    "sphere": maker_of("NAdam", sphere=True),
}
TENSORFLOW_MAKERS: dict[str, Callable[..., Any]] = {
    "LARS": lars,
    "NovoGrad": lambda weights, **extras: optim.RuleOptimizer(weights, NOVOGRAD, **extras),
    "NesterovLARS": lambda weights, **extras: optim.RuleOptimizer(weights, NESTEROV_LARS, **extras),
    "Adam with a trust ratio": lambda weights, **extras: optim.tensorflow.Adam(
        weights, trust_ratio=True, **extras
    ),
}
ALL_MAKERS = MAKERS | TENSORFLOW_MAKERS


def compare(
    make: Callable[..., Any],
    make_params: Callable[[], list[Parameter]],
    prepare: Callable[[list[Parameter], int], None],
    steps: int = 6,
    extras: dict[str, Any] | None = None,
) -> int:
    """Compare an optimizer with a twin that does not replay; return the replayed steps."""
    sides: list[tuple[Any, list[Parameter]]] = []
    for _ in range(2):
        weights = make_params()
        sides.append((make(weights, **(extras or {})), weights))
    for step in range(steps):
        for is_twin, (opt, weights) in enumerate(sides):
            if (extras or {}).get("fused_unscale"):
                opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(4.0 + step // 4)
            prepare(weights, step)
            if is_twin:
                opt.step_cache.forget_replay()
            opt.step()
        for (key, actual), (_, expected) in zip(*(snapshot(*run) for run in sides), strict=True):
            assert are_same(actual, expected), (key, step)
    return count_replays(sides[0][0])


DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    ("name", "options", "dtype"), cover_values(product(MAKERS, OPTIONS, DTYPES), 2), ids=str
)
def test_reducing_options_are_replayed(
    name: str, options: tuple[dict[str, Any], int], dtype: torch.dtype
) -> None:
    extras, calls = options

    def make_params() -> list[Parameter]:
        return [Parameter(param.to(dtype)) for param in params(6)]

    def prepare(weights: list[Parameter], step: int) -> None:
        set_grads(weights, step, {4})

    assert compare(MAKERS[name], make_params, prepare, 6 * calls, extras) == 4


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TENSORFLOW_MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("extras", [{}, {"ema_decay": 0.9}, {"clip_grad_norm": 0.5}], ids=str)
def test_tensorflow_reducing_rules_are_replayed(
    name: str, dtype: torch.dtype, extras: dict[str, Any]
) -> None:
    def make_params() -> list[Parameter]:
        return [Parameter(param.to(dtype)) for param in params(6)]

    # Norms of clipped gradients depend on all gradients, which prevents replay.
    expected_count = 0 if "clip_grad_norm" in extras and "trust" not in name else 4
    assert compare(TENSORFLOW_MAKERS[name], make_params, set_grads, extras=extras) == expected_count


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ALL_MAKERS)
def test_replayed_sums_keep_their_order(name: str) -> None:
    def make_params() -> list[Parameter]:
        torch.manual_seed(0)
        return [Parameter(torch.randn(size)) for size in (200_001, 3, 0, 70_000, 1, 330_000)]

    assert compare(ALL_MAKERS[name], make_params, set_grads) == 4


def _zero(weights: list[Parameter]) -> None:
    for param in weights:
        param.data.zero_()


def _without_gradient(weights: list[Parameter]) -> None:
    weights[1].grad = torch.zeros_like(weights[1])


def _nan(weights: list[Parameter]) -> None:
    weights[0].grad = torch.full_like(weights[0], torch.nan)


def _infinite(weights: list[Parameter]) -> None:
    weights[2].grad = torch.full_like(weights[2], -torch.inf)


def _tiny(weights: list[Parameter]) -> None:
    for param in weights:
        param.grad = torch.full_like(param, 1e-42)


def _huge(weights: list[Parameter]) -> None:
    for param in weights:
        param.grad = torch.full_like(param, 3e38)


CHANGES = (_zero, _without_gradient, _nan, _infinite, _tiny, _huge)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "change"), cover_values(product(ALL_MAKERS, CHANGES), 2))
def test_extreme_values_are_replayed(name: str, change: Callable[..., Any]) -> None:
    def prepare(weights: list[Parameter], step: int) -> None:
        set_grads(weights, step)
        if step == 4:
            change(weights)

    assert compare(ALL_MAKERS[name], lambda: params(6), prepare) == 4


def write_radius(weights: list[Parameter], opt: Any) -> None:
    opt.state[weights[1]]["radius"].fill_(2.5)


def share_radius(weights: list[Parameter], opt: Any) -> None:
    weights[0].grad = opt.state[weights[0]]["radius"].reshape(weights[0].shape)


@pytest.mark.parametrize(
    ("change", "expected_count"),
    [(write_radius, 5), (share_radius, 1)],
    ids=lambda argument: getattr(argument, "__name__", str(argument)),
)
def test_user_changes_of_radius_are_used(change: Callable[..., Any], expected_count: int) -> None:
    sides: list[tuple[Any, list[Parameter]]] = []
    for _ in range(2):
        torch.manual_seed(0)
        weights = [Parameter(torch.randn(shape)) for shape in ((1,), (1,), (3, 4))]
        sides.append((optim.AdamH(weights, lr=0.01), weights))
    counts: list[int] = []
    for step in range(7):
        for is_twin, (opt, weights) in enumerate(sides):
            set_grads(weights, step)
            if step == 4:
                change(weights, opt)
            if is_twin:
                opt.step_cache.forget_replay()
            opt.step()
        for (key, actual), (_, expected) in zip(*(snapshot(*run) for run in sides), strict=True):
            assert are_same(actual, expected), (key, step)
        counts.append(count_replays(sides[0][0]))
    assert counts[-1] == expected_count, counts


def make_random(seed: int) -> tuple[Any, list[Parameter]]:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtypes = [torch.float32, torch.float32, torch.float64, torch.bfloat16]
    mixed, count = rng.random() < 0.3, rng.randint(2, 6)
    weights = [
        Parameter(
            torch.randn(
                rng.choice(SHAPES),
                dtype=rng.choice(dtypes) if mixed else torch.float32,
            )
        )
        for _ in range(count)
    ]
    make = ALL_MAKERS[rng.choice([*ALL_MAKERS])]
    extras, _ = rng.choice(OPTIONS)
    return make(weights, **extras), weights


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(8))
def test_random_changes_equal_careful_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not diff(make_random, seed)

"""Steps in one native call of rules that measure their variables: only their time differs."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from case_batches import many
from replay_twins import OPTIONS, SHAPES, count_replays, diff, params, same, set_grads, snapshot
from thalweg import optim
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe
from thalweg.rules import LARS, NESTEROV_LARS, NOVOGRAD

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)


def of(name: str, **options: Any) -> Callable[..., Any]:
    return lambda own, **around: getattr(optim, name)(own, lr=0.01, **options, **around)


def in_groups(name: str, **options: Any) -> Callable[..., Any]:
    def make(own: list[Parameter], **around: Any) -> Any:
        groups = [{"params": own[::2]}, {"params": own[1::2], "lr": 0.05, **options}]
        return getattr(optim, name)([each for each in groups if each["params"]], **around)

    return make


def beside_others(own: list[Parameter], **around: Any) -> Any:
    groups = [
        {"params": own[::3], "rule": "LAMB", "weight_decay": 0.1},
        {"params": own[1::3], "rule": "AdamW"},
        {"params": own[2::3], "rule": "CautiousAdamW"},
    ]
    return optim.Mixed([each for each in groups if each["params"]], **around)


def lars(own: list[Parameter], **around: Any) -> Any:
    groups = [{"params": own[::2]}, {"params": own[1::2], "adaptive": 0.0}]
    return optim.RuleOptimizer([each for each in groups if each["params"]], LARS, **around)


MAKERS: dict[str, Callable[..., Any]] = {
    "LAMB": of("LAMB"),
    "LAMB that always adapts": of("LAMB", weight_decay=0.0, always_adapt=True, trust_clip=True),
    "StableAdamW": of("StableAdamW"),
    "AdamH": of("AdamH"),
    "CautiousAdamW": of("CautiousAdamW"),
    "LAMB in groups": in_groups("LAMB", weight_decay=0.0),
    "MARS": of("MARS", weight_decay=0.1),
    "MARS of Lion's kind": of("MARS", mars_type="lion", betas_1d=(0.8, 0.9)),
    "MARS in groups": in_groups("MARS", optimize_1d=True, mars_type="lion"),
    "StableAdamW in groups": in_groups("StableAdamW", betas=(0.8, 0.9)),
    "beside others": beside_others,
    "cautious": of("AdamW", cautious=True),
    "cautious decay": of("AdamW", cautious=True, cautious_decay=True, weight_decay=0.1),
    "trust ratio": of("NAdam", trust_ratio=True),
    "sphere": of("NAdam", sphere=True),
}
LIKE_TENSORFLOW: dict[str, Callable[..., Any]] = {
    "LARS": lars,
    "NovoGrad": lambda own, **around: optim.RuleOptimizer(own, NOVOGRAD, **around),
    "NesterovLARS": lambda own, **around: optim.RuleOptimizer(own, NESTEROV_LARS, **around),
    "Adam with a trust ratio": lambda own, **around: optim.tensorflow.Adam(
        own, trust_ratio=True, **around
    ),
}
ALL = MAKERS | LIKE_TENSORFLOW


def compare(
    make: Callable[..., Any],
    own: Callable[[], list[Parameter]],
    before: Callable[[list[Parameter], int], None],
    steps: int = 6,
    around: dict[str, Any] | None = None,
) -> int:
    """How many steps an optimizer takes in one call, whose numbers its twin has, too."""
    sides: list[tuple[Any, list[Parameter]]] = []
    for _ in range(2):
        each = own()
        sides.append((make(each, **(around or {})), each))
    for step in range(steps):
        for is_twin, (opt, each) in enumerate(sides):
            if (around or {}).get("fused_unscale"):
                opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(4.0 + step // 4)
            before(each, step)
            if is_twin:
                opt._cache.forget_replay()
            opt.step()
        for (what, one), (_, other) in zip(*(snapshot(*each) for each in sides), strict=True):
            assert same(one, other), (what, step)
    return count_replays(sides[0][0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MAKERS)
@many("around,calls", OPTIONS)
def test_every_option_has_them(
    name: str, dtype: torch.dtype, around: dict[str, Any], calls: int
) -> None:
    def own() -> list[Parameter]:
        return [Parameter(param.to(dtype)) for param in params(6)]

    def before(each: list[Parameter], step: int) -> None:
        set_grads(each, step, {4})

    assert compare(MAKERS[name], own, before, 6 * calls, around) == 4


@pytest.mark.parametrize("name", LIKE_TENSORFLOW)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("around", [{}, {"ema_decay": 0.9}, {"clip_grad_norm": 0.5}], ids=str)
def test_so_do_rules_with_the_numbers_of_tensorflow(
    name: str, dtype: torch.dtype, around: dict[str, Any]
) -> None:
    def own() -> list[Parameter]:
        return [Parameter(param.to(dtype)) for param in params(6)]

    # What a rule makes of the norms of clipped gradients follows from those of others.
    wanted = 0 if "clip_grad_norm" in around and "trust" not in name else 4
    assert compare(LIKE_TENSORFLOW[name], own, set_grads, around=around) == wanted


@pytest.mark.parametrize("name", ALL)
def test_sums_are_added_up_in_their_order(name: str) -> None:
    def own() -> list[Parameter]:
        torch.manual_seed(0)
        return [Parameter(torch.randn(size)) for size in (200_001, 3, 0, 70_000, 1, 330_000)]

    assert compare(ALL[name], own, set_grads) == 4


def _zero(own: list[Parameter]) -> None:
    for param in own:
        param.data.zero_()


def _without_gradient(own: list[Parameter]) -> None:
    own[1].grad = torch.zeros_like(own[1])


def _nan(own: list[Parameter]) -> None:
    own[0].grad = torch.full_like(own[0], torch.nan)


def _infinite(own: list[Parameter]) -> None:
    own[2].grad = torch.full_like(own[2], -torch.inf)


def _tiny(own: list[Parameter]) -> None:
    for param in own:
        param.grad = torch.full_like(param, 1e-42)


def _huge(own: list[Parameter]) -> None:
    for param in own:
        param.grad = torch.full_like(param, 3e38)


@pytest.mark.parametrize("change", [_zero, _without_gradient, _nan, _infinite, _tiny, _huge])
@pytest.mark.parametrize("name", ALL)
def test_strange_numbers_are_no_reason_for_careful_steps(
    name: str, change: Callable[[list[Parameter]], None]
) -> None:
    def before(own: list[Parameter], step: int) -> None:
        set_grads(own, step)
        if step == 4:
            change(own)

    assert compare(ALL[name], lambda: params(6), before) == 4


def written(own: list[Parameter], opt: Any) -> None:
    opt.state[own[1]]["radius"].fill_(2.5)


def as_gradient(own: list[Parameter], opt: Any) -> None:
    own[0].grad = opt.state[own[0]]["radius"].reshape(own[0].shape)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [(written, 5), (as_gradient, 1)],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_numbers_of_a_rule_for_each_variable_are_those_that_the_state_has(
    change: Callable[[list[Parameter], Any], None], wanted: int
) -> None:
    sides: list[tuple[Any, list[Parameter]]] = []
    for _ in range(2):
        torch.manual_seed(0)
        own = [Parameter(torch.randn(shape)) for shape in ((1,), (1,), (3, 4))]
        sides.append((optim.AdamH(own, lr=0.01), own))
    counts: list[int] = []
    for step in range(7):
        for is_twin, (opt, own) in enumerate(sides):
            set_grads(own, step)
            if step == 4:
                change(own, opt)
            if is_twin:
                opt._cache.forget_replay()
            opt.step()
        for (what, one), (_, other) in zip(*(snapshot(*each) for each in sides), strict=True):
            assert same(one, other), (what, step)
        counts.append(count_replays(sides[0][0]))
    assert counts[-1] == wanted, counts


def made(seed: int) -> tuple[Any, list[Parameter]]:
    dice = random.Random(seed)
    torch.manual_seed(seed)
    dtypes = [torch.float32, torch.float32, torch.float64, torch.bfloat16]
    mixed, count = dice.random() < 0.3, dice.randint(2, 6)
    own = [
        Parameter(
            torch.randn(dice.choice(SHAPES), dtype=dice.choice(dtypes) if mixed else torch.float32)
        )
        for _ in range(count)
    ]
    make = ALL[dice.choice([*ALL])]
    around, _ = dice.choice(OPTIONS)
    return make(own, **around), own


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(40))
def test_whatever_changes_the_step_is_the_careful_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not diff(made, seed)

"""Replayed steps of several rules: equal to steps that are not replayed."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from bit_comparison import assert_same
from replay_twins import OPTIONS, SHAPES, are_same, count_replays, diff, params, set_grads, snapshot
from thalweg import optim
from thalweg._core import replay
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import guard_table

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
Options = list[dict[str, Any]]
# Classes with the options of their groups, which have several rules.
CASES: list[tuple[str, Options]] = [
    ("Mixed", [{"rule": "AdamW"}, {"rule": "Lion"}, {"rule": "SGD", "momentum": 0.9}]),
    ("Mixed", [{"rule": "NAdam"}, {"rule": "NAdam", "lr": 0.1}, {"rule": "Rprop"}]),
    ("SGD", [{"momentum": 0.9}, {}]),
    ("Adam", [{}, {"amsgrad": True}, {"weight_decay": 0.1}]),
    ("RMSprop", [{"centered": True}, {"momentum": 0.5}]),
]


def groups_of(weights: list[Parameter], options: Options) -> list[dict[str, Any]]:
    """Return groups with these options; parameters are assigned in turn."""
    count = len(options)
    return [
        {"params": weights[k::count], **kwargs}
        for k, kwargs in enumerate(options)
        if weights[k::count]
    ]


@pytest.mark.parametrize("skipped", [set(), {1}, {0, 3}], ids=str)
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_third_step_is_replayed(name: str, options: Options, skipped: set[int]) -> None:
    weights = params(6)
    opt = getattr(optim, name)(groups_of(weights, options))
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    for step in range(8):
        set_grads(weights, step, skipped)
        opt.step()
        schedule.step()
    assert count_replays(opt) == 6
    assert opt.last_step.count == 8


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("extras", "calls"), OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_option_is_replayed(extras: dict[str, Any], calls: int, dtype: torch.dtype) -> None:
    sides: list[tuple[Any, list[Parameter]]] = []
    for _ in range(2):
        weights = [Parameter(param.to(dtype)) for param in params(6)]
        sides.append((optim.Mixed(groups_of(weights, CASES[0][1]), **extras), weights))
    for step in range(6 * calls):
        for is_twin, (opt, weights) in enumerate(sides):
            if extras.get("fused_unscale"):
                opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(4.0 + step // 4)
            set_grads(weights, step, {4})
            if is_twin:
                opt.step_cache.forget_replay()
            opt.step()
    assert count_replays(sides[0][0]) == 4
    for (key, actual), (_, expected) in zip(*(snapshot(*run) for run in sides), strict=True):
        assert are_same(actual, expected), key


def test_dtypes_of_rules_may_differ() -> None:
    sides: list[tuple[Any, list[Parameter]]] = []
    for _ in range(2):
        weights = params(4)
        weights[1] = Parameter(weights[1].double())
        groups = groups_of(weights, [{"rule": "AdamW"}, {"rule": "Lion"}])
        sides.append((optim.Mixed(groups, clip_grad_norm=0.5), weights))
    for step in range(6):
        for is_twin, (opt, weights) in enumerate(sides):
            set_grads(weights, step)
            if is_twin:
                opt.step_cache.forget_replay()
            opt.step()
    assert count_replays(sides[0][0]) == 4
    for (key, actual), (_, expected) in zip(*(snapshot(*run) for run in sides), strict=True):
        assert are_same(actual, expected), key


def test_rule_without_gradients_is_skipped() -> None:
    weights = params(2)
    opt = optim.Mixed(groups_of(weights, CASES[0][1]))
    for step in range(9):
        set_grads(weights, step, {1} if 3 <= step < 6 else set())
        previous = weights[1].detach().clone()
        opt.step()
        assert torch.equal(weights[1], previous) is (3 <= step < 6)
    assert [len(opt.state[param]) > 0 for param in weights] == [True, True]
    assert opt.last_step.count == 9


@pytest.mark.parametrize(
    ("row", "index", "change"),
    [
        (0, 0, {"rule": "Adam"}),
        (2, 0, {"momentum": 0.0}),
        (2, 1, {"momentum": 0.5}),
        (3, 1, {"amsgrad": False}),
        (3, 2, {"amsgrad": True}),
    ],
)
def test_changed_rule_of_group_is_used(row: int, index: int, change: dict[str, Any]) -> None:
    name, options = CASES[row]
    weights, twins = params(6), params(6)
    sides = [
        (getattr(optim, name)(groups_of(tensors, options)), tensors) for tensors in (weights, twins)
    ]
    for step in range(8):
        for is_twin, (opt, tensors) in enumerate(sides):
            set_grads(tensors, step)
            if step == 5:
                opt.param_groups[index].update(change)
            if is_twin:
                opt.step_cache.forget_replay()
            opt.step()
    assert_same(weights, twins)


def test_size_limit_counts_all_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = params(6)
    for largest, per_variable, is_large in ((36, 1, False), (35, 5, True), (1, 6, False)):
        monkeypatch.setattr(replay, "_LARGE", largest)
        monkeypatch.setattr(replay, "_LARGE_PER_VARIABLE", per_variable)
        opt = optim.Mixed(groups_of(weights, CASES[0][1]))
        for step in range(5):
            set_grads(weights, step)
            opt.step()
        assert count_replays(opt) == 3
        assert opt.step_cache.replay.guards.releases_lock == is_large


@pytest.mark.parametrize("has_step", [False, True])
def test_interrupt_is_atomic_over_rules(has_step: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = params(6)
    opt = optim.Mixed(groups_of(weights, CASES[0][1]))
    for step in range(4):
        set_grads(weights, step)
        opt.step()
    take = guard_table.GuardTable.replay

    def interrupted(*args: Any, **kwargs: Any) -> int:
        if has_step:
            take(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(guard_table.GuardTable, "replay", interrupted)
    previous = [param.detach().clone() for param in weights]
    with pytest.raises(KeyboardInterrupt) as error:
        opt.step()
    monkeypatch.undo()
    message = "The step was taken." if has_step else "The step was not taken"
    assert [note for note in error.value.__notes__ if note.startswith(message)]
    is_changed = [not torch.equal(*pair) for pair in zip(weights, previous, strict=True)]
    assert is_changed == [has_step] * len(weights)
    assert opt.last_step.count == 4 + has_step


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
    name, options = rng.choice(CASES)
    extras, _ = rng.choice(OPTIONS)
    return getattr(optim, name)(groups_of(weights, options), **extras), weights


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(8))
def test_random_changes_equal_careful_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not diff(make_random, seed)

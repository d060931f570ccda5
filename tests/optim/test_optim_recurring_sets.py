"""Replayed steps with changing options and changing sets of gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import Parameter
from torch.optim import lr_scheduler

from pairwise import cover_pairs, cover_values
from replay_twins import (
    SHAPES,
    are_same,
    count_replays,
    diff,
    look_carefully,
    params,
    random_set,
    set_grads,
    snapshot,
)
from thalweg import optim
from thalweg._engines import torch_layout_probe

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
CLASSES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("Adagrad", {"lr_decay": 0.1}),
    ("RAdam", {}),
    ("NAdam", {}),
    ("ASGD", {}),
    ("LaProp", {}),
    ("Adamax", {"weight_decay": 0.1}),
    ("Lion", {}),
    ("AdEMAMix", {}),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"clip_grad_norm": 0.5},
    {"clip_grad_value": 0.3, "clip_grad_norm": 0.5},
    {"ema_decay": 0.9},
    {"masters": True},
    {"state_dtype": torch.bfloat16},
    {"fused_unscale": True, "clip_grad_norm": 0.5},
    {"state_storage": "8bit"},
]
SETS: dict[str, Callable[[int, int], set[int]]] = {
    "rotating": lambda step, count: {step % count},
    "alternating": lambda step, count: {k for k in range(count) if k % 2 == step % 2},
    "random": lambda step, count: random_set(count, random.Random(step)),
    "critic": lambda step, count: {0, 1} if step % 4 else {2, 3, 4},
}
STEPS = 24


def make(name: str, options: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    shapes = [(40,), (4, 64), (), (2, 3, 4), (70,), (64,)]
    weights = [Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    groups = [{"params": weights[:2]}, {"params": weights[2:], "lr": 0.02}]
    return getattr(optim, name)(groups, lr=0.01, **options), weights


def assert_same(sides: list[Any], step: int) -> None:
    for (key, actual), (_, expected) in zip(*(snapshot(*run) for run in sides), strict=True):
        assert are_same(actual, expected), (key, step)
        # Those of one plan share a block, and its counter of writes.
        if key.startswith(("step ", "mu_product ", "eta ", "mu ", "rate_mean ")):
            continue
        assert getattr(actual, "_version", 0) == getattr(expected, "_version", 0), (key, step)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("case", "sets"),
    cover_values(product([*CLASSES, *(("AdamW", kwargs) for kwargs in OPTIONS)], SETS), 2),
    ids=str,
)
def test_alternating_gradient_sets_share_one_plan(
    case: tuple[str, dict[str, Any]], sets: str
) -> None:
    name, options = case
    dtype = torch.bfloat16 if "masters" in options else torch.float32
    sides = [make(name, options, dtype) for _ in range(2)]
    for step in range(STEPS):
        for is_twin, (opt, weights) in enumerate(sides):
            if options.get("fused_unscale"):
                opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(4.0)
            set_grads(weights, step, SETS[sets](step, len(weights)) if step else set())
            if is_twin:
                look_carefully(opt)
            opt.step()
        assert_same(sides, step)
    # Two sets that lack a gradient have one plan made for all of them.
    assert count_replays(sides[0][0]) >= STEPS - 6


def _by_hand(opt: Any) -> Any:
    class Schedule:
        def step(self) -> None:
            for group in opt.param_groups:
                group["lr"] = np.float64(group["lr"] * 0.9)
                if group.get("weight_decay"):
                    group["weight_decay"] = group["weight_decay"] * 0.9

    return Schedule()


def _tensor(opt: Any) -> Any:
    rates = [torch.tensor(group["lr"]) for group in opt.param_groups]
    for group, rate in zip(opt.param_groups, rates, strict=True):
        group["lr"] = rate

    class Schedule:
        def step(self) -> None:
            for rate in rates:
                rate.mul_(0.9)

    return Schedule()


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda k: 1 / (1 + k)),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 40),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=40),
    "by hand": _by_hand,
    "a tensor": _tensor,
}


SCHEDULED: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.1},
    "AdamW": {},
    "RAdam": {},
    "Lion": {"weight_decay": 0.1},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "extras", "schedule"),
    cover_pairs(product(SCHEDULED, OPTIONS[:4], SCHEDULES)),
    ids=str,
)
def test_options_changed_at_every_step_are_read_in_replay(
    name: str, extras: dict[str, Any], schedule: str
) -> None:
    if schedule == "OneCycleLR" and name == "Lion":
        pytest.skip("torch's OneCycleLR takes momentum or Adam's betas alone")
    sides = [make(name, {**SCHEDULED[name], **extras}) for _ in range(2)]
    schedules = [SCHEDULES[schedule](opt) for opt, _ in sides]
    for step in range(STEPS):
        for is_twin, (opt, weights) in enumerate(sides):
            set_grads(weights, step)
            if is_twin:
                look_carefully(opt)
            opt.step()
            schedules[is_twin].step()
        assert_same(sides, step)
    # RAdam begins anew where its rule changes, and leaves what torch makes of a tensor to torch.
    allowed = 8 if name == "RAdam" else 2
    if not (name == "RAdam" and schedule == "a tensor"):
        assert count_replays(sides[0][0]) >= STEPS - allowed


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "value",
    [0.0, -0.01, float("nan"), float("inf"), 1e31, 1, True, np.float32(0.01), "x", None, [0.1]],
    ids=repr,
)
@pytest.mark.parametrize("key", ["lr", "weight_decay", "betas"])
def test_unusual_option_value_takes_the_full_step(key: str, value: Any) -> None:
    results: list[Any] = []
    for is_twin in range(2):
        opt, weights = make("AdamW", {})
        for step in range(6):
            set_grads(weights, step)
            opt.step()
        if not is_twin:
            assert count_replays(opt) == 4
        opt.param_groups[0][key] = (value, 0.9) if key == "betas" else value
        set_grads(weights, 7)
        if is_twin:
            look_carefully(opt)
        try:
            opt.step()
            error = ""
        except Exception as step_error:
            error = f"{type(step_error).__name__}: {step_error}"
        results.append((error, opt, weights))
    assert results[0][0] == results[1][0]
    assert_same([outcome[1:] for outcome in results], 7)


def test_a_parameter_with_a_first_gradient_joins_the_plan() -> None:
    opt, weights = make("AdamW", {})
    for step in range(10):
        set_grads(weights, step, {step % 4, 5})
        opt.step()
    previous_count = count_replays(opt)
    assert previous_count
    set_grads(weights, 10)
    opt.step()
    assert opt.state[weights[5]]["step"] == 1
    for step in range(11, 40):
        set_grads(weights, step, {step % 5})
        opt.step()
    assert opt.state[weights[5]]["step"] == 30
    assert count_replays(opt) > 12


def test_step_without_gradients_changes_nothing() -> None:
    sides = [make("AdamW", {}) for _ in range(2)]
    for step in range(16):
        for is_twin, (opt, weights) in enumerate(sides):
            set_grads(weights, step, {*range(6)} if step % 5 == 4 else {step % 6})
            if is_twin:
                look_carefully(opt)
            opt.step()
        assert_same(sides, step)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Lion", "Mixed"])
def test_random_changes_with_random_sets_equal_full_steps(name: str) -> None:
    def made(seed: int) -> Any:
        dice = random.Random(seed)
        options = dice.choice([*OPTIONS[:4], {"accumulate": 2}])
        torch.manual_seed(seed)
        weights = [Parameter(torch.randn(dice.choice(SHAPES))) for _ in range(5)]
        if name == "Mixed":
            rules = [("AdamW", weights[:3]), ("SGD", weights[3:])]
            groups = [{"params": weights, "rule": rule, "lr": 0.01} for rule, weights in rules]
            return optim.Mixed(groups, **options), weights
        return getattr(optim, name)(weights, lr=0.01, **options), weights

    for seed in range(8):
        assert not diff(made, seed, has_sets=True)


def test_absent_gradients_may_be_freed() -> None:
    weights = params(6, (64,))
    opt = optim.AdamW(weights, clip_grad_norm=1.0)
    for step in range(200):
        set_grads(weights, step, {k for k in range(6) if (step + k) % 3 == 0})
        opt.step()
    assert count_replays(opt) > 190
    assert all(torch.isfinite(param).all() for param in weights)


def _share_steps(opt: Any, weights: list[Parameter]) -> None:
    opt.state[weights[1]]["step"] = opt.state[weights[0]]["step"]


def _widen_slot(opt: Any, weights: list[Parameter]) -> None:
    opt.state[weights[0]]["exp_avg"] = opt.state[weights[0]]["exp_avg"].double()


def _widen_param(opt: Any, weights: list[Parameter]) -> None:
    weights[0].data = weights[0].data.double()


def _plain_step(opt: Any, weights: list[Parameter]) -> None:
    opt.state[weights[0]]["step"] = int(opt.state[weights[0]]["step"])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
@pytest.mark.parametrize(
    "change",
    [_share_steps, _widen_slot, _widen_param, _plain_step],
    ids=lambda function: function.__name__,
)
def test_changes_of_parameters_without_gradients_are_detected(
    change: Callable[..., Any], options: dict[str, Any]
) -> None:
    sides = [make("AdamW", options) for _ in range(2)]
    for step in range(12):
        errors: list[str] = []
        for is_twin, (opt, weights) in enumerate(sides):
            set_grads(weights, step, {0, 2 + step % 3} if step in range(2, 9) else set())
            if step == 4:
                change(opt, weights)
            if is_twin:
                look_carefully(opt)
            try:
                opt.step()
                errors.append("")
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
        assert errors[0] == errors[1], step
        for (key, actual), (_, expected) in zip(*(snapshot(*run) for run in sides), strict=True):
            assert type(actual) is type(expected), (key, step)
            assert are_same(actual, expected), (key, step)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("key", "name", "options"),
    cover_pairs(
        product(("differentiable", "capturable", "foreach"), ("AdamW", "NAdam", "SGD"), OPTIONS[:4])
    ),
    ids=str,
)
def test_options_that_need_the_torch_fallback_are_detected(
    key: str, name: str, options: dict[str, Any]
) -> None:
    if (key, name) == ("capturable", "SGD"):
        pytest.skip("torch's SGD has no such option")
    for last_step in range(2, 7):
        results: list[Any] = []
        for is_twin in range(2):
            opt, weights = make(name, {**options, **({"momentum": 0.9} if name == "SGD" else {})})
            for step in range(last_step):
                set_grads(weights, step, {step} if step < 2 else set())
                opt.step()
            group = opt.param_groups[0]
            group[key] = True
            if key == "foreach":
                group["lr"] = torch.tensor(0.05)
            set_grads(weights, 9)
            if is_twin:
                look_carefully(opt)
            try:
                opt.step()
                error = ""
            except Exception as step_error:
                error = f"{type(step_error).__name__}: {step_error}"
            results.append((error, opt, weights))
        assert results[0][0] == results[1][0], last_step
        assert_same([outcome[1:] for outcome in results], last_step)

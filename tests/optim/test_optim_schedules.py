"""`thalweg.optim.schedules`: factors of rates, schedules of groups and of other options."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch

from thalweg import optim
from thalweg.errors import CheckpointMismatchError, InvalidArgumentError, InvalidTypeError
from thalweg.optim import schedules


def adamw(*rates: float) -> optim.AdamW:
    groups = [{"params": [torch.ones(2, requires_grad=True)], "lr": rate} for rate in rates]
    return optim.AdamW(groups, weight_decay=0.1)


def rates_of(schedule: Any, steps: int) -> list[list[float]]:
    """Return the rates of each group before and after each of some steps."""
    rates = [schedule.get_last_lr()]
    for _ in range(steps):
        for param in (p for group in schedule.optimizer.param_groups for p in group["params"]):
            param.grad = torch.ones_like(param)
        schedule.optimizer.step()
        schedule.step()
        rates.append(schedule.get_last_lr())
    return rates


@pytest.mark.parametrize(
    ("shape", "decayed"),
    [
        ("linear", lambda share: 1 - share),
        ("cosine", lambda share: 0.5 * (1 + math.cos(math.pi * share))),
        ("1-sqrt", lambda share: 1 - math.sqrt(share)),
    ],
)
def test_warmup_stable_decay_has_three_phases(shape: str, decayed: Any) -> None:
    factor = schedules.WarmupStableDecay(total=20, warmup=4, decay=8, shape=shape, floor=0.1)
    assert [factor(step) for step in range(5)] == [0, 0.25, 0.5, 0.75, 1]
    assert {factor(step) for step in range(4, 13)} == {1.0}
    for step in range(12, 20):
        assert factor(step) == pytest.approx(0.1 + 0.9 * decayed((step - 12) / 8))
    assert factor(20) == factor(1000) == 0.1


@pytest.mark.parametrize("stable", [0, 5])
def test_warmup_stable_decay_has_the_numbers_of_torchtitan(stable: int) -> None:
    warmup, decay = 4, 6
    factor = schedules.WarmupStableDecay(
        total=warmup + stable + decay, warmup=warmup, decay=decay + 1, begin=1 / (warmup + 1)
    )
    for step in range(warmup + stable + decay + 1):
        if step < warmup:
            expected = (step + 1) / (warmup + 1)
        elif step < warmup + stable:
            expected = 1.0
        else:
            expected = 1 - (step + 1 - warmup - stable) / (decay + 1)
        assert factor(step) == pytest.approx(expected, abs=1e-15), step


def test_warmup_cosine_ends_at_its_floor() -> None:
    factor = schedules.WarmupCosine(total=12, warmup=2, floor=0.2, begin=0.5)
    assert [factor(0), factor(1), factor(2), factor(7)] == pytest.approx([0.5, 0.75, 1, 0.6])
    assert factor(12) == factor(99) == 0.2


def test_inverse_square_root_halves_in_four_times_the_steps() -> None:
    factor = schedules.InverseSquareRoot(warmup=100)
    assert [factor(50), factor(100), factor(400)] == [0.5, 1, 0.5]
    assert schedules.InverseSquareRoot(timescale=9)(27) == 0.5


def test_schedule_multiplies_the_rate_of_each_group() -> None:
    schedule = schedules.Schedule(adamw(0.1, 0.2), lambda step: 1 / (1 + step))
    assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
    assert rates_of(schedule, 1) == [[0.1, 0.2], [0.05, 0.1]]


def test_schedule_selects_groups_by_index_rule_and_name() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    rules = {"0.weight": "Muon", "1.weight": "Lion", ...: "AdamW"}
    optimizer = optim.Mixed(optim.groups(model, rules=rules))
    before = {group["rule"]: group["lr"] for group in optimizer.param_groups}
    factors: Any = {"Muon": lambda step: 0.5, "1.w*": lambda step: 0.25, ...: lambda step: 2.0}
    schedules.Schedule(optimizer, factors)
    after = {group["rule"]: group["lr"] / before[group["rule"]] for group in optimizer.param_groups}
    assert after == {"Muon": 0.5, "Lion": 0.25, "AdamW": 2.0}
    by_index: Any = {0: lambda step: 0.5, ...: lambda step: 1.0}
    assert schedules.Schedule(adamw(0.1, 0.2), by_index).get_last_lr() == [0.05, 0.2]


@pytest.mark.parametrize(
    ("factors", "error", "message"),
    [
        ({0: abs}, InvalidArgumentError, "Group 1 is selected by no selector; add `...`"),
        ({0: abs, 1: abs, 5: abs}, InvalidArgumentError, "5 selects no group"),
        ({0: abs, "*": abs, ...: abs}, InvalidArgumentError, "'\\*' selects no group"),
        ({0: 0.5, ...: abs}, InvalidTypeError, "The factor of 0 must be a function"),
        ({1.5: abs}, InvalidTypeError, "A selector of groups must be an index"),
        (0.5, InvalidTypeError, "must be a function of the number of steps, not 0.5"),
    ],
)
def test_invalid_factors_raise_and_change_nothing(factors: Any, error: Any, message: str) -> None:
    optimizer = adamw(0.1, 0.2)
    with pytest.raises(error, match=message):
        schedules.Schedule(optimizer, factors)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    assert "initial_lr" not in optimizer.param_groups[0]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("WarmupStableDecay", {"total": 0}, "total must be an integer of 1 or more, not 0"),
        ("WarmupStableDecay", {"total": 9, "warmup": 5, "decay": 6}, "warmup=5 and decay=6 are"),
        ("WarmupStableDecay", {"total": 9, "shape": "sqrt"}, "shape is 'sqrt'; known are 'linear'"),
        ("WarmupStableDecay", {"total": 9, "floor": 2.0}, r"floor must be in \[0, 1\], not 2.0"),
        ("WarmupCosine", {"total": 9, "warmup": 10}, "warmup=10 is more than total=9"),
        ("WarmupCosine", {"total": 9.0}, "total must be an integer"),
        ("InverseSquareRoot", {"warmup": -1}, "warmup must be an integer of 0 or more, not -1"),
        ("InverseSquareRoot", {"timescale": 0}, "timescale must be an integer of 1 or more, not 0"),
    ],
)
def test_invalid_values_of_factors_raise(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        getattr(schedules, kind)(**options)


def test_schedule_continues_from_its_state() -> None:
    factor = schedules.WarmupStableDecay(total=9, warmup=3, decay=3)
    optimizer = adamw(0.1)
    schedule = schedules.Schedule(optimizer, factor)
    rates_of(schedule, 4)
    state = pickle.loads(pickle.dumps(schedule.state_dict()))
    other = adamw(0.1)
    loaded = schedules.Schedule(other, factor)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    loaded.load_state_dict(state)
    assert rates_of(loaded, 5) == rates_of(schedule, 5)


def test_option_schedule_multiplies_weight_decay() -> None:
    optimizer = adamw(0.1, 0.2)
    schedule = schedules.OptionSchedule(optimizer, "weight_decay", lambda step: 1 / (1 + step))
    schedule.step()
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.05, 0.05]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    other = schedules.OptionSchedule(adamw(0.1, 0.2), "weight_decay", lambda step: 1 / (1 + step))
    other.load_state_dict(schedule.state_dict())
    other.step()
    assert other.get_values() == pytest.approx([0.1 / 3] * 2)
    with pytest.raises(CheckpointMismatchError, match="'weight_decay' with 1 groups"):
        schedules.OptionSchedule(adamw(0.1), "weight_decay", abs).load_state_dict(
            schedule.state_dict()
        )
    with pytest.raises(InvalidArgumentError, match=r"'betas' of group 0 is .*not a number"):
        schedules.OptionSchedule(optimizer, "betas", abs)

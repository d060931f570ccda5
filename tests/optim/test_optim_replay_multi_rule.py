"""Steps of several rules in one native call, and that only their time differs."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from replay_twins import OPTIONS, SHAPES, differences, everything, give, params, same, taken
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
SEVERAL: list[tuple[str, Options]] = [
    ("Mixed", [{"rule": "AdamW"}, {"rule": "Lion"}, {"rule": "SGD", "momentum": 0.9}]),
    ("Mixed", [{"rule": "NAdam"}, {"rule": "NAdam", "lr": 0.1}, {"rule": "Rprop"}]),
    ("SGD", [{"momentum": 0.9}, {}]),
    ("Adam", [{}, {"amsgrad": True}, {"weight_decay": 0.1}]),
    ("RMSprop", [{"centered": True}, {"momentum": 0.5}]),
]


def groups_of(own: list[Parameter], options: Options) -> list[dict[str, Any]]:
    """Groups with these options, and a parameter in turn for each."""
    count = len(options)
    return [{"params": own[k::count], **each} for k, each in enumerate(options) if own[k::count]]


@pytest.mark.parametrize("without", [set(), {1}, {0, 3}], ids=str)
@pytest.mark.parametrize(("name", "options"), SEVERAL, ids=str)
def test_from_the_third_on_all_steps_are(name: str, options: Options, without: set[int]) -> None:
    own = params(6)
    opt = getattr(optim, name)(groups_of(own, options))
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    for step in range(8):
        give(own, step, without)
        opt.step()
        schedule.step()
    assert taken(opt) == 6
    assert opt.last_step.count == 8


@pytest.mark.parametrize(("around", "calls"), OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_option_has_them(around: dict[str, Any], calls: int, dtype: torch.dtype) -> None:
    sides: list[tuple[Any, list[Parameter]]] = []
    for _ in range(2):
        own = [Parameter(param.to(dtype)) for param in params(6)]
        sides.append((optim.Mixed(groups_of(own, SEVERAL[0][1]), **around), own))
    for step in range(6 * calls):
        for is_twin, (opt, own) in enumerate(sides):
            if around.get("fused_unscale"):
                opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(4.0 + step // 4)
            give(own, step, {4})
            if is_twin:
                opt._cache.forget_replay()
            opt.step()
    assert taken(sides[0][0]) == 4
    for (what, one), (_, other) in zip(*(everything(*each) for each in sides), strict=True):
        assert same(one, other), what


def test_dtypes_of_rules_may_differ() -> None:
    sides: list[tuple[Any, list[Parameter]]] = []
    for _ in range(2):
        own = params(4)
        own[1] = Parameter(own[1].double())
        groups = groups_of(own, [{"rule": "AdamW"}, {"rule": "Lion"}])
        sides.append((optim.Mixed(groups, clip_grad_norm=0.5), own))
    for step in range(6):
        for is_twin, (opt, own) in enumerate(sides):
            give(own, step)
            if is_twin:
                opt._cache.forget_replay()
            opt.step()
    assert taken(sides[0][0]) == 4
    for (what, one), (_, other) in zip(*(everything(*each) for each in sides), strict=True):
        assert same(one, other), what


def test_a_rule_whose_parameters_have_no_gradients_is_left_out() -> None:
    own = params(2)
    opt = optim.Mixed(groups_of(own, SEVERAL[0][1]))
    for step in range(9):
        give(own, step, {1} if 3 <= step < 6 else set())
        before = own[1].detach().clone()
        opt.step()
        assert torch.equal(own[1], before) is (3 <= step < 6)
    assert [len(opt.state[param]) > 0 for param in own] == [True, True]
    assert opt.last_step.count == 9


@pytest.mark.parametrize(
    ("kind", "place", "change"),
    [
        (0, 0, {"rule": "Adam"}),
        (2, 0, {"momentum": 0.0}),
        (2, 1, {"momentum": 0.5}),
        (3, 1, {"amsgrad": False}),
        (3, 2, {"amsgrad": True}),
    ],
)
def test_the_rule_of_a_group_is_looked_at(kind: int, place: int, change: dict[str, Any]) -> None:
    name, options = SEVERAL[kind]
    own, others = params(6), params(6)
    sides = [(getattr(optim, name)(groups_of(each, options)), each) for each in (own, others)]
    for step in range(8):
        for is_twin, (opt, each) in enumerate(sides):
            give(each, step)
            if step == 5:
                opt.param_groups[place].update(change)
            if is_twin:
                opt._cache.forget_replay()
            opt.step()
    assert all(map(torch.equal, own, others))


def test_the_elements_of_all_rules_count(monkeypatch: pytest.MonkeyPatch) -> None:
    own = params(6)
    for largest, each, wanted in ((36, 1, 3), (35, 5, 0), (1, 6, 3)):
        monkeypatch.setattr(replay, "_LARGE", largest)
        monkeypatch.setattr(replay, "_LARGE_PER_VARIABLE", each)
        opt = optim.Mixed(groups_of(own, SEVERAL[0][1]))
        for step in range(5):
            give(own, step)
            opt.step()
        assert taken(opt) == wanted


@pytest.mark.parametrize("is_after", [False, True])
def test_an_interruption_comes_before_or_after_all_rules(
    is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = params(6)
    opt = optim.Mixed(groups_of(own, SEVERAL[0][1]))
    for step in range(4):
        give(own, step)
        opt.step()
    take = guard_table.GuardTable.replay

    def interrupted(*given: Any, **named: Any) -> int:
        if is_after:
            take(*given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(guard_table.GuardTable, "replay", interrupted)
    before = [param.detach().clone() for param in own]
    with pytest.raises(KeyboardInterrupt) as caught:
        opt.step()
    monkeypatch.undo()
    said = "The step was taken." if is_after else "The step was not taken"
    assert [note for note in caught.value.__notes__ if note.startswith(said)]
    moved = [not torch.equal(*each) for each in zip(own, before, strict=True)]
    assert moved == [is_after] * len(own)
    assert opt.last_step.count == 4 + is_after


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
    name, options = dice.choice(SEVERAL)
    around, _ = dice.choice(OPTIONS)
    return getattr(optim, name)(groups_of(own, options), **around), own


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(40))
def test_whatever_changes_the_step_is_the_careful_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not differences(made, seed)

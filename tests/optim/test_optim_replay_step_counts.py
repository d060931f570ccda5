"""Steps in one native call of parameters whose numbers differ: only their time differs."""

from __future__ import annotations

import copy
import inspect
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import Parameter

from replay_twins import OPTIONS, SHAPES, count_replays, diff, params, same, set_grads, snapshot
from thalweg import optim
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.optim import tensorflow
from thalweg.rules.torch import TORCH_ADAM

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
Side = tuple[Any, list[Parameter]]
CLASSES: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("ASGD", {}),
    ("Adagrad", {"lr_decay": 0.1}),
    ("LAMB", {}),
    ("StableAdamW", {}),
    ("Adamax", {}),
]


def in_groups(own: list[Parameter], **options: Any) -> Any:
    return [{"params": own[:2]}, {"params": own[2:], **options}]


def compare(sides: list[Side], steps: range, without: Any, around: dict[str, Any]) -> None:
    """Take steps, of which the twin takes none in one call."""
    for step in steps:
        for is_twin, (opt, own) in enumerate(sides):
            if around.get("fused_unscale"):
                opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(4.0)
            set_grads(own, step, without(step))
            if is_twin:
                opt._cache.forget_replay()
            opt.step()
        for (what, one), (_, other) in zip(*(snapshot(*each) for each in sides), strict=True):
            assert same(one, other), (what, step)
            assert getattr(one, "_version", 0) == getattr(other, "_version", 0), (what, step)


@pytest.mark.parametrize("around", [each for each, calls in OPTIONS if calls == 1], ids=str)
@pytest.mark.parametrize(("name", "options"), CLASSES, ids=str)
def test_parameters_may_have_begun_later(
    name: str, options: dict[str, Any], around: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    sides: list[Side] = []
    for _ in range(2):
        own = params(5)
        given = in_groups(own, lr=0.02)
        sides.append((getattr(optim, name)(given, lr=0.01, **options, **around), own))
    begins = [0, 2, 0, 2, 3]
    compare(sides, range(9), lambda step: {k for k in range(5) if begins[k] > step}, around)
    assert count_replays(sides[0][0]) == 4


@pytest.mark.parametrize(("name", "options"), CLASSES, ids=str)
def test_and_may_have_ended(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    sides: list[Side] = []
    for _ in range(2):
        own = params(5)
        sides.append((getattr(optim, name)(own, lr=0.01, **options), own))
    compare(sides, range(9), lambda step: {1, 3} if step > 3 else set(), {})
    assert count_replays(sides[0][0]) == 3


def test_groups_may_go_on_to_other_numbers() -> None:
    sides: list[Side] = []
    for _ in range(2):
        own = params(5)
        sides.append((optim.ASGD(in_groups(own, lr=0.5), lr=0.1), own))
    compare(sides, range(8), lambda step: set(), {})
    assert count_replays(sides[0][0]) == 6


def test_a_number_that_others_write_is_seen() -> None:
    sides: list[Side] = []
    for _ in range(2):
        own = params(5)
        sides.append((optim.Adam(own), own))
    compare(sides, range(4), lambda step: set(), {})
    assert count_replays(sides[0][0]) == 2
    for opt, own in sides:
        opt.state[own[2]]["step"].fill_(100)
    compare(sides, range(4, 8), lambda step: set(), {})
    for opt, own in sides:
        opt.state[own[2]]["step"].fill_(9)
        opt.state[own[1]]["step"].fill_(17)
    compare(sides, range(8, 12), lambda step: set(), {})
    for opt, own in sides:
        for param in own:
            opt.state[param]["step"].fill_(50)
    compare(sides, range(12, 16), lambda step: set(), {})
    assert [float(each["step"]) for each in sides[0][0].state.values()] == [54.0] * 5


def test_a_state_of_several_rules_that_was_loaded_may_have_its_numbers_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    sides: list[Side] = []
    for _ in range(2):
        own = params(6)
        groups = [{"params": own[::2], "rule": "AdamW"}, {"params": own[1::2], "rule": "NAdam"}]
        sides.append((optim.Mixed(groups), own))
    compare(sides, range(4), lambda step: set(), {})
    for opt, _ in sides:
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    compare(sides, range(4, 9), lambda step: set(), {})
    assert count_replays(sides[0][0]) == 3


def test_a_number_that_others_write_beside_a_frozen_parameter_is_seen() -> None:
    sides: list[Side] = []
    for _ in range(2):
        own = params(5)
        sides.append((optim.tensorflow.Adam(own), own))
    compare(sides, range(4), lambda step: {1}, {})
    assert count_replays(sides[0][0]) == 2
    for opt, own in sides:
        opt.state[own[2]]["step"].fill_(100)
    compare(sides, range(4, 8), lambda step: {1}, {})


def made(seed: int) -> Side:
    dice = random.Random(seed)
    torch.manual_seed(seed)
    own = [Parameter(torch.randn(dice.choice(SHAPES))) for _ in range(dice.randint(2, 6))]
    name, options = dice.choice(CLASSES)
    around, calls = dice.choice(OPTIONS)
    groups: Any = in_groups(own, lr=0.05) if dice.random() < 0.5 and len(own) > 2 else own
    opt = getattr(optim, name)(groups, lr=0.01, **options, **around)
    for step in range(3 * calls):
        set_grads(own, step, {k for k in range(len(own)) if k % 3 > step // calls})
        if around.get("fused_unscale"):
            opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(2.0)
        opt.step()
    return opt, own


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(40))
def test_whatever_changes_the_step_is_the_careful_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not diff(made, seed)


def write_step(opt: Any, number: float) -> None:
    for own in opt.state.values():
        own["step"].fill_(number)


def say_scale(opt: Any, number: float) -> None:
    opt.found_inf, opt.grad_scale = torch.zeros(()), None


def say_nothing(opt: Any, number: float) -> None:
    if "found_inf" in vars(opt):
        del opt.found_inf, opt.grad_scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("number", [40.0, 2.0**24 - 3])
@pytest.mark.parametrize(("name", "options"), CLASSES, ids=str)
def test_scalars_are_those_of_the_step_whoever_makes_them(
    name: str, options: dict[str, Any], number: float, dtype: torch.dtype
) -> None:
    """They are made natively, then in Python, then natively again, each after others have."""
    sides: list[Side] = []
    for _ in range(2):
        torch.manual_seed(0)
        own = [Parameter(torch.randn(shape, dtype=dtype)) for shape in ((3, 4), (5,), (2, 2))]
        given = [{"params": own[:2]}, {"params": own[2:], "lr": 0.02}]
        sides.append((getattr(optim, name)(given, lr=0.01, **options), own))
    between = {5: write_step, 8: say_scale, 12: say_nothing, 14: write_step}
    for step in range(20):
        for opt, _ in sides:
            opt.param_groups[1]["lr"] = 0.02 * 0.9**step
            if step in between:
                between[step](opt, number + step)
        compare(sides, range(step, step + 1), lambda step: set(), {})


def _divides(step: Any) -> Any:
    return 0 / (8 - step)


def _overflows(step: Any) -> Any:
    return 0 * 1e45**step


@pytest.mark.parametrize("late", [_divides, _overflows])
def test_what_is_an_error_in_python_is_one_of_the_step(
    late: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where scalars are made natively: Python refuses steps 8 and 7, which change nothing."""
    usual: Any = TORCH_ADAM.prepare

    def prepare(
        *, learning_rate: Any, beta1: Any, beta2: Any, weight_decay: Any,
        decoupled_weight_decay: Any, maximize: Any, t: Any,
    ) -> dict[str, Any]:  # fmt: skip
        given = learning_rate, beta1, beta2, weight_decay, decoupled_weight_decay, maximize, t
        made = usual(**dict(zip(inspect.signature(usual).parameters, given, strict=True)))
        return {**made, "direction": 1.0 + late(t)}

    prepare.__module__ = usual.__module__  # what is the user's is called in Python
    rule = replace(TORCH_ADAM, prepare=prepare)
    monkeypatch.setattr(optim.Adam, "_choose_rule", staticmethod(lambda group: rule))
    own = params(3)
    opt = optim.Adam(own)
    steps = 7 if late is _divides else 6
    for step in range(steps):
        set_grads(own, step)
        opt.step()
    assert count_replays(opt) == steps - 2
    before = copy.deepcopy(snapshot(opt, own))
    set_grads(own, steps)
    with pytest.raises(InvalidArgumentError, match=rf"Group 0 takes no .* in step {steps + 1}\."):
        opt.step()
    for (what, one), (_, other) in zip(snapshot(opt, own), before, strict=True):
        assert same(one, other), what


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["AdamW", "Adamax", "RAdam", "SGD"])
@pytest.mark.parametrize(
    "rate",
    [np.float32(0.1), np.float16(0.1), np.float64(0.1), np.array(0.1, np.float32), 1],
    ids=repr,
)
def test_rates_are_of_the_type_that_they_were_given_in(
    rate: Any, name: str, dtype: torch.dtype
) -> None:
    """NumPy divides a float32 by Python's numbers in float32, whoever makes the scalars."""
    sides: list[Side] = []
    for _ in range(2):
        own = [Parameter(param.to(dtype)) for param in params(3)]
        sides.append((getattr(optim, name)(in_groups(own, lr=0.02), lr=rate), own))
    compare(sides, range(6), lambda step: set(), {})
    assert count_replays(sides[0][0]) == 4
    for opt, _ in sides:
        opt.param_groups[1]["lr"] = rate
    compare(sides, range(6, 12), lambda step: set(), {})
    assert count_replays(sides[0][0]) > 0


def _halve(group: dict[str, Any]) -> None:
    group["lr"] *= 0.5


def _forget_sooner(group: dict[str, Any]) -> None:
    group["betas"][0] = 0.5


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # of torch, whose tensors take arrays
@pytest.mark.parametrize("name", ["Adam", "RAdam", "Adamax"])
@pytest.mark.parametrize(
    ("options", "change"),
    [({"lr": np.array(0.1)}, _halve), ({"lr": 0.1, "betas": [0.9, 0.99]}, _forget_sooner)],
    ids=["an array", "a list"],
)
def test_options_that_are_written_to_in_place_are_read(
    name: str, options: dict[str, Any], change: Callable[[dict[str, Any]], None]
) -> None:
    made: list[list[Parameter]] = []
    for module in (optim, torch.optim):
        own = params(3)
        opt = getattr(module, name)([{"params": own, **copy.deepcopy(options)}])
        for step in range(9):
            set_grads(own, step)
            if step == 6:
                change(opt.param_groups[0])
            opt.step()
        made.append(own)
    for got, wanted in zip(*made, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("around", [{}, {"clip_grad_norm": 100.0}], ids=str)
@pytest.mark.parametrize("name", ["Adam", "NAdam"])
def test_a_number_that_was_written_before_a_refused_step_is_seen(
    name: str, around: dict[str, Any]
) -> None:
    sides: list[Side] = []
    for _ in range(2):
        own = params(3)
        sides.append((getattr(optim, name)(own, lr=0.1, **around), own))
    compare(sides, range(4), lambda step: set(), {})
    assert count_replays(sides[0][0]) == 2
    for opt, own in sides:
        for number, param in enumerate(own):
            opt.state[param]["step"].fill_(50.0 * (number + 1))
        (group,) = opt.param_groups
        rate, group["lr"] = group["lr"], "none"
        with pytest.raises(InvalidTypeError):
            opt.step()
        group["lr"] = rate
    compare(sides, range(4, 8), lambda step: set(), {})
    assert [float(each["step"]) for each in sides[0][0].state.values()] == [54.0, 104.0, 154.0]


@pytest.mark.parametrize("around", [{}, {"clip_grad_norm": 100.0}], ids=str)
@pytest.mark.parametrize(
    ("make", "number", "said"),
    [
        (optim.ADOPT, -5.0, "Group 0 takes no step"),  # a root of it is complex
        (tensorflow.Adam, 2**63 - 1, "'step' would become 9223372036854775808, beyond int64"),
    ],
    ids=["complex", "beyond int64"],
)
def test_numbers_that_no_native_step_holds_are_left_to_the_careful_one(
    make: Any, number: float, said: str, around: dict[str, Any]
) -> None:
    own = params(3)
    opt = make(own, lr=0.1, **around)
    for step in range(4):
        set_grads(own, step)
        opt.step()
    assert count_replays(opt) == 2
    for each in opt.state.values():
        each["step"].fill_(number)
    before = copy.deepcopy(snapshot(opt, own))
    with pytest.raises(InvalidArgumentError, match=said):
        opt.step()
    for (what, one), (_, other) in zip(snapshot(opt, own), before, strict=True):
        assert same(one, other), what

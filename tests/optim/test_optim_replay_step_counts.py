"""Replayed steps of parameters with different scalars: equal to steps that are not replayed."""

from __future__ import annotations

import copy
import inspect
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import Parameter

from pairwise import cover_values
from replay_twins import OPTIONS, SHAPES, are_same, count_replays, diff, params, set_grads, snapshot
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


def in_groups(weights: list[Parameter], **options: Any) -> Any:
    return [{"params": weights[:2]}, {"params": weights[2:], **options}]


def compare(sides: list[Side], steps: range, skipped: Any, extras: dict[str, Any]) -> None:
    """Take steps with both sides and compare; the twin does not replay."""
    for step in steps:
        for is_twin, (opt, weights) in enumerate(sides):
            if extras.get("fused_unscale"):
                opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(4.0)
            set_grads(weights, step, skipped(step))
            if is_twin:
                opt.step_cache.forget_replay()
            opt.step()
        for (key, actual), (_, expected) in zip(*(snapshot(*run) for run in sides), strict=True):
            assert are_same(actual, expected), (key, step)
            assert getattr(actual, "_version", 0) == getattr(expected, "_version", 0), (key, step)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    ("case", "extras"),
    cover_values(product(CLASSES, [option for option, calls in OPTIONS if calls == 1]), 3),
    ids=str,
)
def test_params_starting_later_join_the_replay(
    case: tuple[str, dict[str, Any]], extras: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, options = case
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    sides: list[Side] = []
    for _ in range(2):
        weights = params(5)
        groups = in_groups(weights, lr=0.02)
        sides.append((getattr(optim, name)(groups, lr=0.01, **options, **extras), weights))
    first_steps = [0, 2, 0, 2, 3]
    compare(sides, range(9), lambda step: {k for k in range(5) if first_steps[k] > step}, extras)
    assert count_replays(sides[0][0]) == 4


@pytest.mark.parametrize(("name", "options"), CLASSES, ids=str)
def test_params_that_stop_getting_gradients_are_replayed(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    sides: list[Side] = []
    for _ in range(2):
        weights = params(5)
        sides.append((getattr(optim, name)(weights, lr=0.01, **options), weights))
    compare(sides, range(9), lambda step: {1, 3} if step > 3 else set(), {})
    assert count_replays(sides[0][0]) == 3


def test_groups_with_different_scalars_are_replayed() -> None:
    sides: list[Side] = []
    for _ in range(2):
        weights = params(5)
        sides.append((optim.ASGD(in_groups(weights, lr=0.5), lr=0.1), weights))
    compare(sides, range(8), lambda step: set(), {})
    assert count_replays(sides[0][0]) == 6


def test_user_written_count_is_used() -> None:
    sides: list[Side] = []
    for _ in range(2):
        weights = params(5)
        sides.append((optim.Adam(weights), weights))
    compare(sides, range(4), lambda step: set(), {})
    assert count_replays(sides[0][0]) == 2
    for opt, weights in sides:
        opt.state[weights[2]]["step"].fill_(100)
    compare(sides, range(4, 8), lambda step: set(), {})
    for opt, weights in sides:
        opt.state[weights[2]]["step"].fill_(9)
        opt.state[weights[1]]["step"].fill_(17)
    compare(sides, range(8, 12), lambda step: set(), {})
    for opt, weights in sides:
        for param in weights:
            opt.state[param]["step"].fill_(50)
    compare(sides, range(12, 16), lambda step: set(), {})
    assert [float(state["step"]) for state in sides[0][0].state.values()] == [54.0] * 5


def test_loaded_mixed_state_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    sides: list[Side] = []
    for _ in range(2):
        weights = params(6)
        groups = [
            {"params": weights[::2], "rule": "AdamW"},
            {"params": weights[1::2], "rule": "NAdam"},
        ]
        sides.append((optim.Mixed(groups), weights))
    compare(sides, range(4), lambda step: set(), {})
    for opt, _ in sides:
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    compare(sides, range(4, 9), lambda step: set(), {})
    assert count_replays(sides[0][0]) == 3


def test_user_written_count_with_frozen_param_is_used() -> None:
    sides: list[Side] = []
    for _ in range(2):
        weights = params(5)
        sides.append((optim.tensorflow.Adam(weights), weights))
    compare(sides, range(4), lambda step: {1}, {})
    assert count_replays(sides[0][0]) == 2
    for opt, weights in sides:
        opt.state[weights[2]]["step"].fill_(100)
    compare(sides, range(4, 8), lambda step: {1}, {})


def make_random(seed: int) -> Side:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    weights = [Parameter(torch.randn(rng.choice(SHAPES))) for _ in range(rng.randint(2, 6))]
    name, options = rng.choice(CLASSES)
    extras, calls = rng.choice(OPTIONS)
    groups: Any = (
        in_groups(weights, lr=0.05) if rng.random() < 0.5 and len(weights) > 2 else weights
    )
    opt = getattr(optim, name)(groups, lr=0.01, **options, **extras)
    for step in range(3 * calls):
        set_grads(weights, step, {k for k in range(len(weights)) if k % 3 > step // calls})
        if extras.get("fused_unscale"):
            opt.found_inf, opt.grad_scale = torch.zeros(()), torch.tensor(2.0)
        opt.step()
    return opt, weights


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(8))
def test_random_changes_equal_careful_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not diff(make_random, seed)


def write_step(opt: Any, number: float) -> None:
    for state in opt.state.values():
        state["step"].fill_(number)


def set_scale(opt: Any, number: float) -> None:
    opt.found_inf, opt.grad_scale = torch.zeros(()), None


def remove_scale(opt: Any, number: float) -> None:
    if "found_inf" in vars(opt):
        del opt.found_inf, opt.grad_scale


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("number", [40.0, 2.0**24 - 3])
@pytest.mark.parametrize(("name", "options"), CLASSES, ids=str)
def test_native_scalars_equal_python_scalars(
    name: str, options: dict[str, Any], number: float, dtype: torch.dtype
) -> None:
    """Alternate between native code and Python."""
    sides: list[Side] = []
    for _ in range(2):
        torch.manual_seed(0)
        weights = [Parameter(torch.randn(shape, dtype=dtype)) for shape in ((3, 4), (5,), (2, 2))]
        groups = [{"params": weights[:2]}, {"params": weights[2:], "lr": 0.02}]
        sides.append((getattr(optim, name)(groups, lr=0.01, **options), weights))
    changes = {5: write_step, 8: set_scale, 12: remove_scale, 14: write_step}
    for step in range(20):
        for opt, _ in sides:
            opt.param_groups[1]["lr"] = 0.02 * 0.9**step
            if step in changes:
                changes[step](opt, number + step)
        compare(sides, range(step, step + 1), lambda step: set(), {})


def _divides(step: Any) -> Any:
    return 0 / (8 - step)


def _overflows(step: Any) -> Any:
    return 0 * 1e45**step


@pytest.mark.parametrize("failing", [_divides, _overflows])
def test_failing_scalars_raise_and_change_nothing(
    failing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scalars of steps 8 and 7 raise in Python; native code raises, too, and changes nothing."""
    original: Any = TORCH_ADAM.prepare

    def prepare(
        *, learning_rate: Any, beta1: Any, beta2: Any, weight_decay: Any,
        decoupled_weight_decay: Any, maximize: Any, t: Any,
    ) -> dict[str, Any]:  # fmt: skip
        values = learning_rate, beta1, beta2, weight_decay, decoupled_weight_decay, maximize, t
        scalars = original(**dict(zip(inspect.signature(original).parameters, values, strict=True)))
        return {**scalars, "direction": 1.0 + failing(t)}

    prepare.__module__ = original.__module__  # what is the user's is called in Python
    rule = replace(TORCH_ADAM, prepare=prepare)
    monkeypatch.setattr(optim.Adam, "_choose_rule", staticmethod(lambda group: rule))
    weights = params(3)
    opt = optim.Adam(weights)
    steps = 7 if failing is _divides else 6
    for step in range(steps):
        set_grads(weights, step)
        opt.step()
    assert count_replays(opt) == steps - 2
    previous = copy.deepcopy(snapshot(opt, weights))
    set_grads(weights, steps)
    with pytest.raises(InvalidArgumentError, match=rf"Group 0 takes no .* in step {steps + 1}\."):
        opt.step()
    for (key, actual), (_, expected) in zip(snapshot(opt, weights), previous, strict=True):
        assert are_same(actual, expected), key


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["AdamW", "Adamax", "RAdam", "SGD"])
@pytest.mark.parametrize(
    "rate",
    [np.float32(0.1), np.float16(0.1), np.float64(0.1), np.array(0.1, np.float32), 1],
    ids=repr,
)
def test_lr_types_are_kept(rate: Any, name: str, dtype: torch.dtype) -> None:
    """NumPy divides a float32 by Python numbers in float32; native code does, too."""
    sides: list[Side] = []
    for _ in range(2):
        weights = [Parameter(param.to(dtype)) for param in params(3)]
        sides.append((getattr(optim, name)(in_groups(weights, lr=0.02), lr=rate), weights))
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


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # raised by torch for arrays
@pytest.mark.parametrize("name", ["Adam", "RAdam", "Adamax"])
@pytest.mark.parametrize(
    ("options", "change"),
    [({"lr": np.array(0.1)}, _halve), ({"lr": 0.1, "betas": [0.9, 0.99]}, _forget_sooner)],
    ids=["an array", "a list"],
)
def test_options_changed_in_place_are_read(
    name: str, options: dict[str, Any], change: Callable[..., Any]
) -> None:
    trained: list[list[Parameter]] = []
    for module in (optim, torch.optim):
        weights = params(3)
        opt = getattr(module, name)([{"params": weights, **copy.deepcopy(options)}])
        for step in range(9):
            set_grads(weights, step)
            if step == 6:
                change(opt.param_groups[0])
            opt.step()
        trained.append(weights)
    for actual, expected in zip(*trained, strict=True):
        torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("extras", [{}, {"clip_grad_norm": 100.0}], ids=str)
@pytest.mark.parametrize("name", ["Adam", "NAdam"])
def test_count_written_before_failed_step_is_used(name: str, extras: dict[str, Any]) -> None:
    sides: list[Side] = []
    for _ in range(2):
        weights = params(3)
        sides.append((getattr(optim, name)(weights, lr=0.1, **extras), weights))
    compare(sides, range(4), lambda step: set(), {})
    assert count_replays(sides[0][0]) == 2
    for opt, weights in sides:
        for number, param in enumerate(weights):
            opt.state[param]["step"].fill_(50.0 * (number + 1))
        (group,) = opt.param_groups
        rate, group["lr"] = group["lr"], "none"
        with pytest.raises(InvalidTypeError):
            opt.step()
        group["lr"] = rate
    compare(sides, range(4, 8), lambda step: set(), {})
    assert [float(state["step"]) for state in sides[0][0].state.values()] == [54.0, 104.0, 154.0]


@pytest.mark.parametrize("extras", [{}, {"clip_grad_norm": 100.0}], ids=str)
@pytest.mark.parametrize(
    ("make", "number", "message"),
    [
        (optim.ADOPT, -5.0, "Group 0 takes no step"),  # a root of it is complex
        (tensorflow.Adam, 2**63 - 1, "'step' would become 9223372036854775808, beyond int64"),
    ],
    ids=["complex", "beyond int64"],
)
def test_huge_counts_raise(make: Any, number: float, message: str, extras: dict[str, Any]) -> None:
    weights = params(3)
    opt = make(weights, lr=0.1, **extras)
    for step in range(4):
        set_grads(weights, step)
        opt.step()
    assert count_replays(opt) == 2
    for state in opt.state.values():
        state["step"].fill_(number)
    previous = copy.deepcopy(snapshot(opt, weights))
    with pytest.raises(InvalidArgumentError, match=message):
        opt.step()
    for (key, actual), (_, expected) in zip(snapshot(opt, weights), previous, strict=True):
        assert are_same(actual, expected), key

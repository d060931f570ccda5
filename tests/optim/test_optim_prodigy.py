"""Prodigy of `thalweg.optim`: what its parameters have in common, over groups, steps and files."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from modern_inputs import (
    IN_GROUPS,
    STEPS,
    gradients_of,
    groups_of,
    params_of,
    rate,
    train_in_groups,
)
from rulebook import assert_same
from thalweg import optim
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, RuleError

GOLDENS = Path(__file__).parents[1] / "goldens" / "modern.npz"
NUMBERS = ("d", "d_max", "d_numerator", "k")


def numbers(made: Any) -> set[tuple[float, ...]]:
    """What parameters have in common: one tuple."""
    every = (own for own in made.state.values() if "d" in own)
    return {tuple(own[name].item() for name in NUMBERS) for own in every}


def step(made: Any, params: Any, number: int, without: Any = ()) -> None:
    for place, param in enumerate(params):
        grad = gradients_of(number, torch.float32)[place]
        param.grad = None if place in without else grad.to(param.dtype)
    made.step()


def test_groups_have_the_numbers_of_the_authors() -> None:
    """With gaps, a parameter that comes later, and a group whose rate is 0 for a while."""
    params, start = params_of(torch.float32), params_of(torch.float32)
    made = optim.Prodigy(groups_of(params), **IN_GROUPS)
    told = train_in_groups(made, params, lambda: made.state[params[1]]["d"].item())
    distances = np.array([*told])
    goldens = np.load(GOLDENS)
    assert np.abs(distances / goldens["Prodigy in groups-d"] - 1).max() < 5e-6
    wanted = torch.from_numpy(goldens["Prodigy in groups"])
    got, begun = (torch.cat([each.detach().ravel() for each in own]) for own in (params, start))
    assert (got - wanted).norm() <= 5e-6 * (wanted - begun).norm()
    assert len(numbers(made)) == 1
    assert {made.state[param]["k"].item() for param in params} == {STEPS}


def test_a_group_of_rate_0_stays() -> None:
    params = params_of(torch.float32)
    groups = [{"params": params[:3]}, {"params": params[3:], "lr": 0.0, "weight_decay": 0.1}]
    alone = params_of(torch.float32)
    made, other = optim.Prodigy(groups, d0=1e-3), optim.Prodigy(alone[:3], d0=1e-3)
    for number in range(4):
        step(made, params, number)
        step(other, alone[:3], number)
    assert_same([x.detach() for x in params], [x.detach() for x in alone])
    assert numbers(made) == numbers(other)


def test_a_step_without_anything_counts_for_nothing() -> None:
    params = params_of(torch.float32)
    made = optim.Prodigy(params, weight_decay=0.1)
    for param in params:
        param.grad = torch.zeros_like(param)
    made.step()
    assert numbers(made) == {(1e-6, 1e-6, 0.0, 0.0)}
    assert_same([x.detach() for x in params], [x.detach() for x in params_of(torch.float32)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_several_dtypes_have_one_estimate(dtype: torch.dtype) -> None:
    """Sums and the numbers are float64, whatever parameters are."""
    params, others = params_of(torch.float32), params_of(torch.float32)
    params[::2] = [x.detach().to(dtype).requires_grad_() for x in params[::2]]
    options: dict[str, Any] = {"state_dtype": torch.float32} if dtype.itemsize == 2 else {}
    made, other = optim.Prodigy(params, d0=1e-3, **options), optim.Prodigy(others, d0=1e-3)
    for number in range(12):
        step(made, params, number)
        step(other, others, number)
        assert len(numbers(made)) == 1
    ((d, *_),), ((wanted, *_),) = numbers(made), numbers(other)
    assert abs(d / wanted - 1) < (1e-6 if dtype == torch.float64 else 0.2)


def beside(own: Any) -> Any:
    groups = [
        {"params": own[:3], "rule": "Prodigy", "d0": 1e-3},
        {"params": own[3:4], "rule": "AdamW", "lr": 0.01},
        {"params": own[4:], "rule": "Prodigy", "d0": 1e-3, "weight_decay": 0.1},
    ]
    return optim.Mixed(groups)


def tensorflows(own: Any) -> Any:
    return optim.RuleOptimizer(own, thalweg.rules.modern.PRODIGY, d0=1e-3)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda own: optim.Prodigy(own, d0=1e-3),
    "beside others": beside,
    "accumulated": lambda own: optim.Prodigy(own, d0=1e-3, accumulate=2),
    "with masters": lambda own: optim.Prodigy(own, d0=1e-3, masters=True),
    "clipped": lambda own: optim.Prodigy(own, d0=1e-3, clip_grad_norm=0.5, ema_decay=0.9),
    "with TensorFlow's numbers": tensorflows,
}
WAYS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "state": lambda made, params, path: None,
    "file": lambda made, params, path: torch.save(made.state_dict(), path),
    "checkpoint": lambda made, params, path: thalweg.checkpoint.save(path, optimizer=made),
    "pickle": lambda made, params, path: pickle.loads(pickle.dumps((made, params))),
    "deepcopy": lambda made, params, path: copy.deepcopy((made, params)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MAKERS)
def test_a_training_goes_on(name: str, way: str, dtype: torch.dtype, tmp_path: Path) -> None:
    def made_of() -> tuple[Any, Any]:
        own = params_of(dtype)
        return MAKERS[name](own), own

    made, params = made_of()
    for number in range(5):
        step(made, params, number, without=(5,) if number < 3 else (1,))
    copied = WAYS[way](made, params, tmp_path / "s")
    if copied is None or way in ("file", "checkpoint"):
        other, own = made_of()
        with torch.no_grad():
            for param, value in zip(own, params, strict=True):
                param.copy_(value)
        if way == "checkpoint":
            thalweg.checkpoint.restore(tmp_path / "s", optimizer=other)
        else:
            state = torch.load(tmp_path / "s") if way == "file" else made.state_dict()
            other.load_state_dict(copy.deepcopy(state))
    else:
        other, own = copied
    assert numbers(other) == numbers(made)
    for number in range(5, 9):
        step(made, params, number)
        step(other, own, number)
    assert_same([x.detach() for x in params], [x.detach() for x in own])
    assert len(numbers(made) | numbers(other)) == 1


@pytest.mark.parametrize("name", MAKERS)
def test_engines_have_the_same_numbers(name: str) -> None:
    both: list[Any] = []
    for engine in ("cpu", "reference"):
        params = params_of(torch.float32)
        with thalweg.engine(engine):
            made = MAKERS[name](params)
            for number in range(8):
                step(made, params, number, without=(2,) if number == 4 else ())
        both.append([*(param.detach() for param in params), torch.tensor([*numbers(made)])])
    assert_same(*both)


def test_a_schedule_moves_all_rates() -> None:
    params = params_of(torch.float32)
    made = optim.Prodigy([{"params": params[:3]}, {"params": params[3:]}], d0=1e-3)
    schedule = optim.lr_scheduler.LambdaLR(made, lambda number: rate(number, 1.0))
    for number in range(6):
        step(made, params, number)
        schedule.step()
    assert numbers(made).pop()[-1] == 6.0
    assert made.last_step.count == 6


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"slice_p": 11}, InvalidArgumentError, "slice_p=11 is not offered"),
        ({"d0": 0.0}, InvalidArgumentError, "d0 must be above 0 in group 0"),
        ({"eps": 0.0}, InvalidArgumentError, "eps must be above 0 in group 0"),
        ({"lr": -1.0}, ValueError, "Invalid lr value"),
        ({"beta3": 1.0}, ValueError, "Invalid beta3 value"),
        ({"in_backward": True}, InvalidArgumentError, "Prodigy adds up over all of a step"),
        ({"sphere": True}, RuleError, "Rule 'Prodigy' on a sphere"),
    ],
)
def test_what_is_refused(given: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        optim.Prodigy(params_of(torch.float32), **given)


def test_groups_that_differ_are_refused_and_nothing_moves() -> None:
    params = params_of(torch.float32)
    made = optim.Prodigy([{"params": params[:2]}], d0=1e-3)
    said = "d_coef of group 1 is 2.0, and of group 0 1.0: groups of Prodigy have it in common"
    with pytest.raises(InvalidArgumentError, match=said):
        made.add_param_group({"params": params[2:], "d_coef": 2.0})
    assert len(made.param_groups) == 1
    made.add_param_group({"params": params[2:]})
    step(made, params, 0)
    before = [each.detach().clone() for each in params]
    state = copy.deepcopy(made.state_dict())
    made.param_groups[1]["lr"] = 0.25
    with pytest.raises(
        InvalidArgumentError, match=r"have one rate, or 0, not 0\.25 and 1\.0"
    ) as told:
        step(made, params, 1)
    assert "no variable and no slot has changed" in told.value.__notes__[-1]
    made.param_groups[1] |= {"lr": 1.0, "d_coef": 2.0}
    with pytest.raises(InvalidArgumentError, match="d_coef of group 1 is"):
        step(made, params, 1)
    made.param_groups[1]["d_coef"] = 1.0
    assert_same([each.detach() for each in params], before)
    assert repr(made.state_dict()["state"]) == repr(state["state"])
    step(made, params, 1)
    assert made.last_step.count == 2


def test_an_overflow_leaves_all_as_it_was() -> None:
    params = params_of(torch.float32)
    made, scaler = optim.Prodigy(params, d0=1e-3), torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    for number in range(4):
        own = gradients_of(number, torch.float32)
        for param, grad in zip(params, own, strict=True):
            param.grad = 4 * grad
        if number == 2:
            params[3].grad[0] = torch.inf
            kept = numbers(made)
        scaler.step(made)
        scaler.update(4.0)
        if number == 2:
            assert numbers(made) == kept
    assert {each[-1] for each in numbers(made)} == {3.0}


def test_a_rule_of_sums_takes_no_variable_alone() -> None:
    from thalweg import Variable
    from thalweg.keras.optimizers import RuleOptimizer

    class OneByOne(RuleOptimizer):
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            return super()._resource_apply_dense(grad, var, apply_state)

    var = Variable([1.0, 2.0], name="w")
    made = OneByOne(thalweg.rules.modern.PRODIGY)
    with pytest.raises(FailedPreconditionError, match="cannot update them one by one"):
        made.apply_gradients([(torch.ones(2), var)])
    assert var.tolist() == [1.0, 2.0]

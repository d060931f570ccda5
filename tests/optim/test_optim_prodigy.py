"""Prodigy of `thalweg.optim`: scalars that parameters share, in groups, steps and files."""

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
SHARED_SCALARS = ("d", "d_max", "d_numerator", "k")


def shared_scalars(opt: Any) -> set[tuple[float, ...]]:
    """Return the shared scalars of all parameters, as a set of one tuple."""
    states = (state for state in opt.state.values() if "d" in state)
    return {tuple(state[name].item() for name in SHARED_SCALARS) for state in states}


def step(opt: Any, params: Any, number: int, skipped: Any = ()) -> None:
    for index, param in enumerate(params):
        grad = gradients_of(number, torch.float32)[index]
        param.grad = None if index in skipped else grad.to(param.dtype)
    opt.step()


def test_groups_match_package_of_the_authors() -> None:
    """Skip gradients, add a parameter later, and set a group's rate to 0 for some steps."""
    params, start = params_of(torch.float32), params_of(torch.float32)
    opt = optim.Prodigy(groups_of(params), **IN_GROUPS)
    raw_distances = train_in_groups(opt, params, lambda: opt.state[params[1]]["d"].item())
    distances = np.array([*raw_distances])
    goldens = np.load(GOLDENS)
    assert np.abs(distances / goldens["Prodigy in groups-d"] - 1).max() < 5e-6
    expected = torch.from_numpy(goldens["Prodigy in groups"])
    actual, start_values = (
        torch.cat([param.detach().ravel() for param in tensors]) for tensors in (params, start)
    )
    assert (actual - expected).norm() <= 5e-6 * (expected - start_values).norm()
    assert len(shared_scalars(opt)) == 1
    assert {opt.state[param]["k"].item() for param in params} == {STEPS}


def test_group_with_zero_lr_does_not_move() -> None:
    params = params_of(torch.float32)
    groups = [{"params": params[:3]}, {"params": params[3:], "lr": 0.0, "weight_decay": 0.1}]
    ref_params = params_of(torch.float32)
    opt, reference = optim.Prodigy(groups, d0=1e-3), optim.Prodigy(ref_params[:3], d0=1e-3)
    for number in range(4):
        step(opt, params, number)
        step(reference, ref_params[:3], number)
    assert_same([x.detach() for x in params], [x.detach() for x in ref_params])
    assert shared_scalars(opt) == shared_scalars(reference)


def test_zero_gradients_change_nothing() -> None:
    params = params_of(torch.float32)
    opt = optim.Prodigy(params, weight_decay=0.1)
    for param in params:
        param.grad = torch.zeros_like(param)
    opt.step()
    assert shared_scalars(opt) == {(1e-6, 1e-6, 0.0, 0.0)}
    assert_same([x.detach() for x in params], [x.detach() for x in params_of(torch.float32)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_mixed_dtypes_share_one_distance_estimate(dtype: torch.dtype) -> None:
    """Sums and shared scalars are float64 for all parameter dtypes."""
    params, ref_params = params_of(torch.float32), params_of(torch.float32)
    params[::2] = [x.detach().to(dtype).requires_grad_() for x in params[::2]]
    options: dict[str, Any] = {"state_dtype": torch.float32} if dtype.itemsize == 2 else {}
    opt, reference = optim.Prodigy(params, d0=1e-3, **options), optim.Prodigy(ref_params, d0=1e-3)
    for number in range(12):
        step(opt, params, number)
        step(reference, ref_params, number)
        assert len(shared_scalars(opt)) == 1
    ((d, *_),), ((expected, *_),) = shared_scalars(opt), shared_scalars(reference)
    assert abs(d / expected - 1) < (1e-6 if dtype == torch.float64 else 0.2)


def mix_rules(params: Any) -> Any:
    groups = [
        {"params": params[:3], "rule": "Prodigy", "d0": 1e-3},
        {"params": params[3:4], "rule": "AdamW", "lr": 0.01},
        {"params": params[4:], "rule": "Prodigy", "d0": 1e-3, "weight_decay": 0.1},
    ]
    return optim.Mixed(groups)


def with_rule(params: Any) -> Any:
    return optim.RuleOptimizer(params, thalweg.rules.modern.PRODIGY, d0=1e-3)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda copies: optim.Prodigy(copies, d0=1e-3),
    "beside others": mix_rules,
    "accumulated": lambda copies: optim.Prodigy(copies, d0=1e-3, accumulate=2),
    "with masters": lambda copies: optim.Prodigy(copies, d0=1e-3, masters=True),
    "clipped": lambda copies: optim.Prodigy(copies, d0=1e-3, clip_grad_norm=0.5, ema_decay=0.9),
    "with TensorFlow's numbers": with_rule,
}
COPIES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "state": lambda opt, params, path: None,
    "file": lambda opt, params, path: torch.save(opt.state_dict(), path),
    "checkpoint": lambda opt, params, path: thalweg.checkpoint.save(path, optimizer=opt),
    "pickle": lambda opt, params, path: pickle.loads(pickle.dumps((opt, params))),
    "deepcopy": lambda opt, params, path: copy.deepcopy((opt, params)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.one_in(7)
def test_prodigy_training_continues_from_copies(
    name: str, kind: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    def made_of() -> tuple[Any, Any]:
        copies = params_of(dtype)
        return MAKERS[name](copies), copies

    opt, params = made_of()
    for number in range(5):
        step(opt, params, number, skipped=(5,) if number < 3 else (1,))
    copies = COPIES[kind](opt, params, tmp_path / "s")
    if copies is None or kind in ("file", "checkpoint"):
        reference, params_copy = made_of()
        with torch.no_grad():
            for param, value in zip(params_copy, params, strict=True):
                param.copy_(value)
        if kind == "checkpoint":
            thalweg.checkpoint.restore(tmp_path / "s", optimizer=reference)
        else:
            state = torch.load(tmp_path / "s") if kind == "file" else opt.state_dict()
            reference.load_state_dict(copy.deepcopy(state))
    else:
        reference, params_copy = copies
    assert shared_scalars(reference) == shared_scalars(opt)
    for number in range(5, 9):
        step(opt, params, number)
        step(reference, params_copy, number)
    assert_same([x.detach() for x in params], [x.detach() for x in params_copy])
    assert len(shared_scalars(opt) | shared_scalars(reference)) == 1


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MAKERS)
def test_engines_agree_on_prodigy(name: str) -> None:
    states: list[Any] = []
    for engine in ("cpu", "reference"):
        params = params_of(torch.float32)
        with thalweg.engine(engine):
            opt = MAKERS[name](params)
            for number in range(8):
                step(opt, params, number, skipped=(2,) if number == 4 else ())
        states.append([*(param.detach() for param in params), torch.tensor([*shared_scalars(opt)])])
    assert_same(*states)


def test_schedule_sets_all_rates() -> None:
    params = params_of(torch.float32)
    opt = optim.Prodigy([{"params": params[:3]}, {"params": params[3:]}], d0=1e-3)
    schedule = optim.lr_scheduler.LambdaLR(opt, lambda number: rate(number, 1.0))
    for number in range(6):
        step(opt, params, number)
        schedule.step()
    assert shared_scalars(opt).pop()[-1] == 6.0
    assert opt.last_step.count == 6


@pytest.mark.parametrize(
    ("options", "error", "message"),
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
def test_invalid_prodigy_options_raise(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        optim.Prodigy(params_of(torch.float32), **options)


def test_inconsistent_groups_raise() -> None:
    params = params_of(torch.float32)
    opt = optim.Prodigy([{"params": params[:2]}], d0=1e-3)
    message = "d_coef of group 1 is 2.0, and of group 0 1.0: groups of Prodigy have it in common"
    with pytest.raises(InvalidArgumentError, match=message):
        opt.add_param_group({"params": params[2:], "d_coef": 2.0})
    assert len(opt.param_groups) == 1
    opt.add_param_group({"params": params[2:]})
    step(opt, params, 0)
    previous = [param.detach().clone() for param in params]
    state = copy.deepcopy(opt.state_dict())
    opt.param_groups[1]["lr"] = 0.25
    with pytest.raises(
        InvalidArgumentError, match=r"have one rate, or 0, not 0\.25 and 1\.0"
    ) as error:
        step(opt, params, 1)
    assert "no variable and no slot has changed" in error.value.__notes__[-1]
    opt.param_groups[1] |= {"lr": 1.0, "d_coef": 2.0}
    with pytest.raises(InvalidArgumentError, match="d_coef of group 1 is"):
        step(opt, params, 1)
    opt.param_groups[1]["d_coef"] = 1.0
    assert_same([param.detach() for param in params], previous)
    assert repr(opt.state_dict()["state"]) == repr(state["state"])
    step(opt, params, 1)
    assert opt.last_step.count == 2


def test_overflow_skips_the_step() -> None:
    params = params_of(torch.float32)
    opt, scaler = optim.Prodigy(params, d0=1e-3), torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    for number in range(4):
        grads = gradients_of(number, torch.float32)
        for param, grad in zip(params, grads, strict=True):
            param.grad = 4 * grad
        if number == 2:
            params[3].grad[0] = torch.inf
            previous = shared_scalars(opt)
        scaler.step(opt)
        scaler.update(4.0)
        if number == 2:
            assert shared_scalars(opt) == previous
    assert {scalars[-1] for scalars in shared_scalars(opt)} == {3.0}


def test_single_variable_update_raises() -> None:
    from thalweg import Variable
    from thalweg.keras.optimizers import RuleOptimizer

    class OneByOne(RuleOptimizer):
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            return super()._resource_apply_dense(grad, var, apply_state)

    var = Variable([1.0, 2.0], name="w")
    opt = OneByOne(thalweg.rules.modern.PRODIGY)
    with pytest.raises(FailedPreconditionError, match="cannot update them one by one"):
        opt.apply_gradients([(torch.ones(2), var)])
    assert var.tolist() == [1.0, 2.0]

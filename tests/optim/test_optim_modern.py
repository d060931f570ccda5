"""Modern rules, compared with recorded results of other implementations."""

from __future__ import annotations

import copy
import pickle
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from modern_inputs import BESIDE, CASES, TABLE, Case, gradients_of, params_of, train
from pairwise import cover_values
from rulebook import assert_same
from thalweg import optim
from thalweg.errors import (
    CheckpointMismatchError,
    FailedPreconditionError,
    InvalidTypeError,
    LayoutError,
    NumericsWarning,
)
from thalweg.keras.optimizers import RuleOptimizer
from thalweg.rules.modern import MODERN_RULES

GOLDENS = Path(__file__).parents[1] / "goldens" / "modern.npz"
BOUND = 5e-6  # relative to the movement
EXACT_CLASSES = ("Lion",)  # same operations as the package, in the same order

SHARED_SCALARS = ("Prodigy",)  # parameters share scalars

by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def flat_of(params: Any) -> Any:
    return torch.cat([param.detach().float().ravel() for param in params])


def has_same_rule(case: Case) -> Any:
    """Return a mask of elements for which the package has the same rule."""
    params = params_of(torch.float32)
    return torch.cat(
        [torch.full((param.numel(),), param.dim() not in case.apart) for param in params]
    )


def create(case: Case, params: Any, decay: float = 0.1, **options: Any) -> Any:
    return getattr(optim, case.cls)(params, **case.arguments(decay, for_own_class=True), **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TABLE)
def test_matches_package_of_its_authors(name: str) -> None:
    case, decay = TABLE[name]
    start, params = params_of(torch.float32), params_of(torch.float32)
    actual = flat_of(train(create(case, params, decay), params, case.lr))
    expected, mask = torch.from_numpy(np.load(GOLDENS)[name]), has_same_rule(case)
    if case.cls in EXACT_CLASSES:
        assert_same([actual], [expected])
    movement = (expected - flat_of(start))[mask].norm()
    assert (actual - expected)[mask].norm() <= BOUND * movement


# The last decay of each case.
NARROW = {TABLE[name][0].name: name for name in TABLE}


@pytest.mark.parametrize(
    ("name", "state"), [*zip(NARROW.values(), cycle((torch.float32, None)))], ids=str
)
@pytest.mark.one_in(7)
def test_bfloat16_params_are_rounded_once_per_step(name: str, state: Any) -> None:
    """The default state of the parameter's dtype has a larger error. An element rounded to the
    other side changes the norm, and with it other elements, in AdamH.
    """
    case, decay = TABLE[name]
    start, params = params_of(torch.float32), params_of(torch.bfloat16)
    actual = flat_of(train(create(case, params, decay, state_dtype=state), params, case.lr))
    mask = has_same_rule(case)
    actual, expected = actual[mask], torch.from_numpy(np.load(GOLDENS)[f"{name}-bfloat16"])[mask]
    movement = (expected - flat_of(start)[mask]).norm()
    assert (actual - expected).norm() <= (0.2 if state is None else 1e-2) * movement
    if state is not None and case.package.split(":")[0] not in ("formula", "timm.optim"):
        assert_same([actual], [expected])


@pytest.mark.parametrize("rule", ["AdamH", "Mixed"])
def test_zero_param_has_no_sphere(rule: str, recwarn: Any) -> None:
    zero, params, twin = torch.zeros(16, 24), params_of(torch.float32)[2:4], torch.zeros(16, 24)
    zero.requires_grad_()
    named_params = [("up.weight", params[0]), ("down.weight", zero)]
    opt = optim.AdamH(named_params, lr=0.01)
    if rule == "Mixed":
        opt = optim.Mixed([{"params": named_params, "rule": "AdamH", "lr": 0.01}])
    adam = optim.AdamWCoupled([twin.requires_grad_()], lr=0.01, weight_decay=0.0)
    for step in range(6):
        params[0].grad, zero.grad = gradients_of(step, torch.float32)[2:4]
        twin.grad = zero.grad
        for stepped in (opt, adam):
            stepped.step()
        if step == 2:
            opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    message = "'down.weight' is 0 and has no sphere, so AdamH takes Adam's steps with it."
    assert [(warning.category, str(warning.message)) for warning in recwarn] == [
        (NumericsWarning, message)
    ]
    assert (zero - twin).norm() < 1e-6 * twin.norm()
    assert opt.state[zero]["radius"] == 0
    radius = params_of(torch.float32)[2].norm()
    assert abs(opt.state[params[0]]["radius"] / radius - 1) < 1e-6
    assert abs(params[0].norm() / radius - 1) < 1e-6


def test_radius_does_not_drift_by_rounding() -> None:
    param = torch.full((300, 5), 0.7, dtype=torch.bfloat16, requires_grad=True)
    opt, radius = optim.AdamH([param], lr=0.003), param.norm(dtype=torch.float64)
    for step in range(60):
        param.grad = gradients_of(step, torch.bfloat16)[5]
        opt.step()
    assert abs(param.norm(dtype=torch.float64) / radius - 1) < 1e-3


@pytest.mark.parametrize("size", [0, 4, 64])
def test_truncated_radius_storage_raises(size: int) -> None:
    """Radii lie in one block, of which a part may remain."""
    params = params_of(torch.float32)
    opt = optim.AdamH(params, lr=0.003)
    for step in range(3):
        for param, grad in zip(params, gradients_of(step, torch.float32), strict=True):
            param.grad = grad
        if step == 2:
            previous = [param.detach().clone() for param in params]
            opt.state[params[0]]["radius"].untyped_storage().resize_(size)
            with pytest.raises(LayoutError, match="'radius' of"):
                opt.step()
            assert_same([param.detach() for param in params], previous)
        else:
            opt.step()


MEANS = [name for name in TABLE if name.startswith("ScheduleFree")]


@pytest.mark.parametrize("name", MEANS)
def test_swapped_params_equal_mean_of_package(name: str) -> None:
    case, decay = TABLE[name]
    params = params_of(torch.float32)
    opt = create(case, params, decay)
    with opt.swapped():  # without a mean, swapping changes nothing
        assert_same([flat_of(params)], [flat_of(params_of(torch.float32))])
    previous = flat_of(train(opt, params, case.lr))
    expected = torch.from_numpy(np.load(GOLDENS)[f"{name}-mean"])
    with opt.swapped():
        movement = (expected - flat_of(params_of(torch.float32))).norm()
        assert (flat_of(params) - expected).norm() <= BOUND * movement
        assert (flat_of(params) - previous).norm() > 1e-3 * movement
        with pytest.raises(FailedPreconditionError, match="inside of swapped"):
            opt.step()
        with pytest.raises(FailedPreconditionError, match="save it outside"):
            opt.state_dict()
    assert_same([flat_of(params)], [previous])


def run_steps(case: Case, dtype: torch.dtype, count: int = 4, **options: Any) -> Any:
    params = params_of(dtype)
    opt = create(case, params, **options)
    for step in range(count):
        for param, grad in zip(params, gradients_of(step, dtype), strict=True):
            # The last has no gradient at first, and the third has none in between.
            is_missing = (param is params[-1] and step == 0) or (param is params[2] and step == 2)
            param.grad = None if is_missing else grad
        opt.step()
    return params, opt


@pytest.mark.parametrize(
    ("case", "options", "dtype"),
    cover_values(product(CASES, BESIDE, (torch.float32, torch.bfloat16)), 1),
    ids=lambda value: getattr(value, "name", str(value)),
)
@pytest.mark.one_in(7)
def test_engines_agree_on_options(case: Case, options: dict[str, Any], dtype: torch.dtype) -> None:
    states: list[Any] = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            params, opt = run_steps(case, dtype, **options)
        slot_dicts = [opt.state[param] for param in params]
        slot_tensors = [
            slot
            for slots in slot_dicts
            for slot in slots.values()
            if isinstance(slot, torch.Tensor)
        ]
        states.append([*(param.detach() for param in params), *slot_tensors])
    assert_same(*states)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@by_case
def test_training_continues_from_state(case: Case, dtype: torch.dtype) -> None:
    params, opt = run_steps(case, dtype)
    copies = [param.detach().clone().requires_grad_() for param in params]
    loaded = create(case, copies)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    for stepped_params, stepped in ((params, opt), (copies, loaded)):
        for param, grad in zip(stepped_params, gradients_of(4, dtype), strict=True):
            param.grad = grad
        stepped.step()
    assert_same([param.detach() for param in params], [param.detach() for param in copies])


@pytest.mark.one_in(3)
@by_case
def test_param_starts_with_its_first_gradient(case: Case) -> None:
    if case.cls in SHARED_SCALARS:
        pytest.skip("what others have done is in the numbers that it begins with")
    late, ref_params = params_of(torch.float32)[2:4], params_of(torch.float32)[2:4]
    opt, reference = create(case, late), create(case, ref_params[1:])
    for step in range(6):
        late[0].grad, grad = gradients_of(step, torch.float32)[2:4]
        late[1].grad = grad if step >= 3 else None
        opt.step()
        if step >= 3:
            ref_params[1].grad = late[1].grad
            reference.step()
    assert_same([late[1].detach()], [ref_params[1].detach()])


@by_case
def test_invalid_options_and_gradients_raise(case: Case) -> None:
    params = params_of(torch.float32)
    others = {"ScheduleFreeSGD": "momentum", "SM3": "momentum", "AdafactorHF": "beta1"}
    name = others.get(case.cls)
    share: dict[str, Any] = {name: 1.0} if name else {"betas": (1.0, 0.9, 0.9)}
    wrong: list[dict[str, Any]] = [{"lr": -1.0}, share]
    for options in wrong + [{"weight_decay": -0.5}] * (len(case.decays) > 1):
        with pytest.raises(ValueError, match="Invalid"):
            getattr(optim, case.cls)(params, **options)
    params[2].grad = torch.ones(24, 16).to_sparse()
    with pytest.raises(RuntimeError, match=f"{case.cls} does not support sparse gradients"):
        create(case, params).step()


def test_wrong_number_of_betas_raises() -> None:
    params = params_of(torch.float32)
    adan, nadamw = optim.Adan(params), optim.NAdamW(params_of(torch.float32))
    assert adan.param_groups[0]["betas"] == (0.98, 0.92, 0.99)
    for opt, betas in ((adan, (0.9, 0.9)), (nadamw, (0.9, 0.9, 0.9))):
        state = opt.state_dict()
        state["param_groups"][0]["betas"] = betas
        with pytest.raises(CheckpointMismatchError, match="numbers"):
            opt.load_state_dict(state)
    for param, grad in zip(params, gradients_of(0, torch.float32), strict=True):
        param.grad = grad
    adan.param_groups[0]["betas"] = (0.9, 0.9)
    with pytest.raises(InvalidTypeError, match="betas must be three numbers"):
        adan.step()


def test_differentiable_step_raises() -> None:
    (param,) = params = [torch.zeros(3, requires_grad=True)]
    param.grad = torch.zeros(3)
    optimizer = optim.NAdamW(params)
    optimizer.param_groups[0]["differentiable"] = True
    with pytest.raises(NotImplementedError, match="NAdamW takes steps on real tensors") as error:
        optimizer.step()
    assert error.value.__notes__ == ["The step was not taken: no variable and no slot has changed."]


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize(
    ("cls_name", "arguments", "name", "value"),
    [
        ("ScheduleFreeAdamW", {"lr": 1e20}, "weight_sum", 5e40),  # a float64
        ("ScheduleFreeSGD", {"lr": 1e20}, "weight_sum", 5e40),
        ("ASGD", {"lr": 1e38, "alpha": -1.0, "lambd": 1.0}, "eta", float("inf")),  # a float32
    ],
)
def test_scalar_overflows_to_infinity(
    cls_name: str, arguments: Any, name: str, value: float, is_native: bool, monkeypatch: Any
) -> None:
    monkeypatch.setenv("THALWEG_NATIVE_LOOK", str(int(is_native)))
    params = params_of(torch.float32)
    opt = getattr(optim, cls_name)(params, **arguments)
    for step in range(5):
        for param, grad in zip(params, gradients_of(step, torch.float32), strict=True):
            param.grad = grad
        opt.step()
    assert opt.last_step.count == 5
    assert {opt.state[param][name].item() for param in params} == {value}


# Scalars that the authors' packages keep as Python floats, with their update by a step.
DOUBLES: dict[str, dict[str, Any]] = {
    "ScheduleFreeAdamW": {"weight_sum": lambda old, lr: old + lr**2.0, "lr_max": max},
    "ScheduleFreeSGD": {"weight_sum": lambda old, lr: old + lr**2.0, "lr_max": max},
    "LaProp": {"rate_mean": lambda old, lr: old * 0.9 + (1 - 0.9) * lr},
}
RATE = 2.0**-8  # exact in float32
MANY_STEPS = 100_000_001  # float32 cannot add a further weight to this many


def train_doubles(opt: Any, params: Any, steps: int) -> None:
    for _ in range(steps):
        for param in params:
            param.grad = torch.full_like(param, 0.1)
        opt.step()


def doubles_of(opt: Any, param: Any, cls_name: str) -> dict[str, float]:
    scalars = {name: opt.state[param][name] for name in DOUBLES[cls_name]}
    assert {scalar.dtype for scalar in scalars.values()} == {torch.float64}
    return {name: scalar.item() for name, scalar in scalars.items()}


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("cls_name", DOUBLES)
def test_float64_scalars_match_authors(
    cls_name: str, dtype: torch.dtype, is_native: bool, monkeypatch: Any
) -> None:
    monkeypatch.setenv("THALWEG_NATIVE_LOOK", str(int(is_native)))
    params, lr = [torch.nn.Parameter(torch.ones(3, 2, dtype=dtype)) for _ in range(2)], 0.003
    opt = getattr(optim, cls_name)(params, lr=lr)
    train_doubles(opt, params, 1)
    expected = {"weight_sum": MANY_STEPS * lr**2.0, "lr_max": lr, "rate_mean": lr / 3}
    for param in params:
        for name in DOUBLES[cls_name]:
            opt.state[param][name].fill_(expected[name])
    for _ in range(6):
        train_doubles(opt, params, 1)
        expected = {name: step(expected[name], lr) for name, step in DOUBLES[cls_name].items()}
        assert doubles_of(opt, params[1], cls_name) == expected


def state_in_float32(opt: Any) -> Any:
    """Return a state as earlier releases wrote it, with numbers of float32."""
    state = copy.deepcopy(opt.state_dict())
    for slots in state["state"].values():
        slots |= {name: x.float() for name, x in slots.items() if x.dtype == torch.float64}
    return state


@pytest.mark.parametrize("cls_name", DOUBLES)
@pytest.mark.parametrize("maker", ["a class", "Mixed", "RuleOptimizer"])
def test_float32_scalars_load_as_float64(cls_name: str, maker: str) -> None:
    def make(params: Any) -> Any:
        if maker == "Mixed":
            return optim.Mixed([{"params": params, "rule": cls_name, "lr": RATE}])
        if maker == "RuleOptimizer":
            rule = next(rule for rule in MODERN_RULES if rule.name == cls_name)
            return optim.RuleOptimizer(params, rule, lr=RATE)
        return getattr(optim, cls_name)(params, lr=RATE)

    params = [torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2)]
    opt = make(params)
    train_doubles(opt, params, 3)
    state = state_in_float32(opt)
    loaded = make(params)
    loaded.load_state_dict(state)
    start = {name: state["state"][0][name].item() for name in DOUBLES[cls_name]}
    assert {name: loaded.state[params[0]][name].item() for name in start} == start
    train_doubles(loaded, params, 4)
    actual = doubles_of(loaded, params[0], cls_name)
    if maker != "RuleOptimizer":  # rounds rates to float32, as TensorFlow does
        expected = start
        for _ in range(4):
            expected = {
                name: step(expected[name], RATE) for name, step in DOUBLES[cls_name].items()
            }
        assert actual == expected
    loaded.load_state_dict(loaded.state_dict())
    assert doubles_of(loaded, params[0], cls_name) == actual


def test_modern_rules_can_be_pickled() -> None:
    for rule in MODERN_RULES:
        unpickled = pickle.loads(pickle.dumps(rule))
        assert (unpickled.name, unpickled.update) == (rule.name, rule.update)
        # Shapes are partial functions, which are not equal.
        assert repr(unpickled.slots) == repr(rule.slots)


def test_modern_rule_config_round_trips() -> None:
    for rule in MODERN_RULES:
        opt = RuleOptimizer(rule)
        assert RuleOptimizer.from_config(opt.get_config()).rule == rule

"""Modern rules beside what other implementations have made of the same gradients."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from case_batches import many
from modern_inputs import BESIDE, CASES, TABLE, Case, gradients_of, params_of, train
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
BOUND = 5e-6  # of the movement
BITS = ("Lion",)  # whose operations are those of their package, one by one

IN_COMMON = ("Prodigy",)  # whose parameters have numbers in common

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def flat(params: Any) -> Any:
    return torch.cat([each.detach().float().ravel() for each in params])


def is_alike(case: Case) -> Any:
    """Of each element whether the package has the same rule for its parameter."""
    params = params_of(torch.float32)
    return torch.cat([torch.full((each.numel(),), each.dim() not in case.apart) for each in params])


def made_of(case: Case, params: Any, decay: float = 0.1, **options: Any) -> Any:
    return getattr(optim, case.cls)(params, **case.arguments(decay, for_own_class=True), **options)


@pytest.mark.parametrize("name", TABLE)
def test_as_the_authors_package(name: str) -> None:
    case, decay = TABLE[name]
    start, params = params_of(torch.float32), params_of(torch.float32)
    got = flat(train(made_of(case, params, decay), params, case.lr))
    wanted, alike = torch.from_numpy(np.load(GOLDENS)[name]), is_alike(case)
    if case.cls in BITS:
        assert_same([got], [wanted])
    movement = (wanted - flat(start))[alike].norm()
    assert (got - wanted)[alike].norm() <= BOUND * movement


@pytest.mark.parametrize("state", [torch.float32, None], ids=str)
@pytest.mark.parametrize("name", TABLE)
def test_parameters_of_bfloat16_are_rounded_once_a_step(name: str, state: Any) -> None:
    """And nothing else is; a state of their own type, which is the default, costs more. An element
    that falls to the other side moves the norm of AdamH's, and others with it.
    """
    case, decay = TABLE[name]
    start, params = params_of(torch.float32), params_of(torch.bfloat16)
    got = flat(train(made_of(case, params, decay, state_dtype=state), params, case.lr))
    alike = is_alike(case)
    got, wanted = got[alike], torch.from_numpy(np.load(GOLDENS)[f"{name}-bfloat16"])[alike]
    movement = (wanted - flat(start)[alike]).norm()
    assert (got - wanted).norm() <= (0.2 if state is None else 1e-2) * movement
    if state is not None and case.package.split(":")[0] not in ("formula", "timm.optim"):
        assert_same([got], [wanted])


@pytest.mark.parametrize("rule", ["AdamH", "Mixed"])
def test_what_begins_at_zero_has_no_sphere(rule: str, recwarn: Any) -> None:
    zero, others, adams = torch.zeros(16, 24), params_of(torch.float32)[2:4], torch.zeros(16, 24)
    zero.requires_grad_()
    named = [("up.weight", others[0]), ("down.weight", zero)]
    made = optim.AdamH(named, lr=0.01)
    if rule == "Mixed":
        made = optim.Mixed([{"params": named, "rule": "AdamH", "lr": 0.01}])
    adam = optim.AdamWCoupled([adams.requires_grad_()], lr=0.01, weight_decay=0.0)
    for step in range(6):
        others[0].grad, zero.grad = gradients_of(step, torch.float32)[2:4]
        adams.grad = zero.grad
        for each in (made, adam):
            each.step()
        if step == 2:
            made.load_state_dict(copy.deepcopy(made.state_dict()))
    said = "'down.weight' is 0 and has no sphere, so AdamH takes Adam's steps with it."
    assert [(each.category, str(each.message)) for each in recwarn] == [(NumericsWarning, said)]
    assert (zero - adams).norm() < 1e-6 * adams.norm()
    assert made.state[zero]["radius"] == 0
    radius = params_of(torch.float32)[2].norm()
    assert abs(made.state[others[0]]["radius"] / radius - 1) < 1e-6
    assert abs(others[0].norm() / radius - 1) < 1e-6


def test_a_sphere_is_that_of_the_beginning() -> None:
    """Whatever rounding makes of the norm in between."""
    param = torch.full((300, 5), 0.7, dtype=torch.bfloat16, requires_grad=True)
    made, radius = optim.AdamH([param], lr=0.003), param.norm(dtype=torch.float64)
    for step in range(60):
        param.grad = gradients_of(step, torch.bfloat16)[5]
        made.step()
    assert abs(param.norm(dtype=torch.float64) / radius - 1) < 1e-3


@pytest.mark.parametrize("kept", [0, 4, 64])
def test_a_block_of_numbers_that_was_cut_is_found(kept: int) -> None:
    """A radius lies in a block with others, of which a part may be left."""
    params = params_of(torch.float32)
    made = optim.AdamH(params, lr=0.003)
    for step in range(3):
        for param, grad in zip(params, gradients_of(step, torch.float32), strict=True):
            param.grad = grad
        if step == 2:
            before = [param.detach().clone() for param in params]
            made.state[params[0]]["radius"].untyped_storage().resize_(kept)
            with pytest.raises(LayoutError, match="'radius' of"):
                made.step()
            assert_same([param.detach() for param in params], before)
        else:
            made.step()


MEANS = [name for name in TABLE if name.startswith("ScheduleFree")]


@pytest.mark.parametrize("name", MEANS)
def test_swapped_parameters_are_the_authors_mean(name: str) -> None:
    case, decay = TABLE[name]
    params = params_of(torch.float32)
    made = made_of(case, params, decay)
    with made.swapped():  # before there is a mean, parameters are what they are
        assert_same([flat(params)], [flat(params_of(torch.float32))])
    before = flat(train(made, params, case.lr))
    wanted = torch.from_numpy(np.load(GOLDENS)[f"{name}-mean"])
    with made.swapped():
        movement = (wanted - flat(params_of(torch.float32))).norm()
        assert (flat(params) - wanted).norm() <= BOUND * movement
        assert (flat(params) - before).norm() > 1e-3 * movement
        with pytest.raises(FailedPreconditionError, match="inside of swapped"):
            made.step()
        with pytest.raises(FailedPreconditionError, match="save it outside"):
            made.state_dict()
    assert_same([flat(params)], [before])


def steps(case: Case, dtype: torch.dtype, count: int = 4, **options: Any) -> Any:
    params = params_of(dtype)
    made = made_of(case, params, **options)
    for step in range(count):
        for param, grad in zip(params, gradients_of(step, dtype), strict=True):
            # The last has no gradient at first, and the third has none in between.
            own = (param is params[-1] and step == 0) or (param is params[2] and step == 2)
            param.grad = None if own else grad
        made.step()
    return params, made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@each_case
@many("options", BESIDE)
def test_engines_agree_under_every_option(
    case: Case, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    both: list[Any] = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            params, made = steps(case, dtype, **options)
        own = [made.state[param] for param in params]
        kept = [each for state in own for each in state.values() if isinstance(each, torch.Tensor)]
        both.append([*(param.detach() for param in params), *kept])
    assert_same(*both)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@each_case
def test_a_training_goes_on_from_its_state(case: Case, dtype: torch.dtype) -> None:
    params, made = steps(case, dtype)
    copies = [param.detach().clone().requires_grad_() for param in params]
    other = made_of(case, copies)
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    for own, each in ((params, made), (copies, other)):
        for param, grad in zip(own, gradients_of(4, dtype), strict=True):
            param.grad = grad
        each.step()
    assert_same([each.detach() for each in params], [each.detach() for each in copies])


@each_case
def test_a_parameter_begins_when_it_has_a_gradient(case: Case) -> None:
    """Whatever the others have done before."""
    if case.cls in IN_COMMON:
        pytest.skip("what others have done is in the numbers that it begins with")
    late, alone = params_of(torch.float32)[2:4], params_of(torch.float32)[2:4]
    made, other = made_of(case, late), made_of(case, alone[1:])
    for step in range(6):
        late[0].grad, grad = gradients_of(step, torch.float32)[2:4]
        late[1].grad = grad if step >= 3 else None
        made.step()
        if step >= 3:
            alone[1].grad = late[1].grad
            other.step()
    assert_same([late[1].detach()], [alone[1].detach()])


@each_case
def test_what_is_refused(case: Case) -> None:
    params = params_of(torch.float32)
    share = (
        {"momentum": 1.0} if case.cls in ("ScheduleFreeSGD", "SM3") else {"betas": (1.0, 0.9, 0.9)}
    )
    wrong: list[dict[str, Any]] = [{"lr": -1.0}, share]
    for given in wrong + [{"weight_decay": -0.5}] * (len(case.decays) > 1):
        with pytest.raises(ValueError, match="Invalid"):
            getattr(optim, case.cls)(params, **given)
    params[2].grad = torch.ones(24, 16).to_sparse()
    with pytest.raises(RuntimeError, match=f"{case.cls} does not support sparse gradients"):
        made_of(case, params).step()


def test_betas_are_as_many_as_the_rule_has() -> None:
    params = params_of(torch.float32)
    made, pair = optim.Adan(params), optim.NAdamW(params_of(torch.float32))
    assert made.param_groups[0]["betas"] == (0.98, 0.92, 0.99)
    for each, betas in ((made, (0.9, 0.9)), (pair, (0.9, 0.9, 0.9))):
        saved = each.state_dict()
        saved["param_groups"][0]["betas"] = betas
        with pytest.raises(CheckpointMismatchError, match="numbers"):
            each.load_state_dict(saved)
    for param, grad in zip(params, gradients_of(0, torch.float32), strict=True):
        param.grad = grad
    made.param_groups[0]["betas"] = (0.9, 0.9)
    with pytest.raises(InvalidTypeError, match="betas must be three numbers"):
        made.step()


def test_what_no_engine_takes_is_refused_by_name() -> None:
    (param,) = params = [torch.zeros(3, device="meta", requires_grad=True)]
    param.grad = torch.zeros(3, device="meta")
    with pytest.raises(
        NotImplementedError, match="NAdamW takes steps on real tensors of the CPU"
    ) as caught:
        optim.NAdamW(params).step()
    assert caught.value.__notes__ == [
        "The step was not taken: no variable and no slot has changed."
    ]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("kind", "arguments", "name", "value"),
    [
        ("ScheduleFreeAdamW", {"lr": 1e20}, "weight_sum", 5e40),  # a float64
        ("ScheduleFreeSGD", {"lr": 1e20}, "weight_sum", 5e40),
        ("ASGD", {"lr": 1e38, "alpha": -1.0, "lambd": 1.0}, "eta", float("inf")),  # a float32
    ],
)
def test_a_number_beyond_its_type_is_infinite(
    kind: str, arguments: Any, name: str, value: float, native: bool, monkeypatch: Any
) -> None:
    monkeypatch.setenv("THALWEG_NATIVE_LOOK", str(int(native)))
    params = params_of(torch.float32)
    made = getattr(optim, kind)(params, **arguments)
    for step in range(5):
        for param, grad in zip(params, gradients_of(step, torch.float32), strict=True):
            param.grad = grad
        made.step()
    assert made.last_step.count == 5
    assert {made.state[param][name].item() for param in params} == {value}


# Numbers of a parameter that the authors keep as Python's, each with what a step makes of it.
DOUBLES: dict[str, dict[str, Any]] = {
    "ScheduleFreeAdamW": {"weight_sum": lambda now, lr: now + lr**2.0, "lr_max": max},
    "ScheduleFreeSGD": {"weight_sum": lambda now, lr: now + lr**2.0, "lr_max": max},
    "LaProp": {"rate_mean": lambda now, lr: now * 0.9 + (1 - 0.9) * lr},
}
RATE = 2.0**-8  # which float32 holds
MANY_STEPS = 100_000_001  # after which float32 has no bits left for another weight


def train_doubles(made: Any, params: Any, steps: int) -> None:
    for _ in range(steps):
        for param in params:
            param.grad = torch.full_like(param, 0.1)
        made.step()


def doubles_of(made: Any, param: Any, kind: str) -> dict[str, float]:
    found = {name: made.state[param][name] for name in DOUBLES[kind]}
    assert {each.dtype for each in found.values()} == {torch.float64}
    return {name: each.item() for name, each in found.items()}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("kind", DOUBLES)
def test_numbers_are_as_exact_as_the_authors(
    kind: str, dtype: torch.dtype, native: bool, monkeypatch: Any
) -> None:
    monkeypatch.setenv("THALWEG_NATIVE_LOOK", str(int(native)))
    params, lr = [torch.nn.Parameter(torch.ones(3, 2, dtype=dtype)) for _ in range(2)], 0.003
    made = getattr(optim, kind)(params, lr=lr)
    train_doubles(made, params, 1)
    wanted = {"weight_sum": MANY_STEPS * lr**2.0, "lr_max": lr, "rate_mean": lr / 3}
    for param in params:
        for name in DOUBLES[kind]:
            made.state[param][name].fill_(wanted[name])
    for _ in range(6):
        train_doubles(made, params, 1)
        wanted = {name: step(wanted[name], lr) for name, step in DOUBLES[kind].items()}
        assert doubles_of(made, params[1], kind) == wanted


def state_in_float32(made: Any) -> Any:
    """Return a state as earlier releases wrote it, with numbers of float32."""
    saved = copy.deepcopy(made.state_dict())
    for own in saved["state"].values():
        own |= {name: x.float() for name, x in own.items() if x.dtype == torch.float64}
    return saved


@pytest.mark.parametrize("kind", DOUBLES)
@pytest.mark.parametrize("around", ["a class", "Mixed", "RuleOptimizer"])
def test_numbers_of_earlier_states_go_on_as_doubles(kind: str, around: str) -> None:
    def make(params: Any) -> Any:
        if around == "Mixed":
            return optim.Mixed([{"params": params, "rule": kind, "lr": RATE}])
        if around == "RuleOptimizer":
            rule = next(rule for rule in MODERN_RULES if rule.name == kind)
            return optim.RuleOptimizer(params, rule, lr=RATE)
        return getattr(optim, kind)(params, lr=RATE)

    params = [torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2)]
    made = make(params)
    train_doubles(made, params, 3)
    saved = state_in_float32(made)
    again = make(params)
    again.load_state_dict(saved)
    begun = {name: saved["state"][0][name].item() for name in DOUBLES[kind]}
    assert {name: again.state[params[0]][name].item() for name in begun} == begun
    train_doubles(again, params, 4)
    got = doubles_of(again, params[0], kind)
    if around != "RuleOptimizer":  # whose rates are rounded to float32, as TensorFlow's
        wanted = begun
        for _ in range(4):
            wanted = {name: step(wanted[name], RATE) for name, step in DOUBLES[kind].items()}
        assert got == wanted
    again.load_state_dict(again.state_dict())
    assert doubles_of(again, params[0], kind) == got


def test_rules_can_be_pickled() -> None:
    for rule in MODERN_RULES:
        again = pickle.loads(pickle.dumps(rule))
        assert (again.name, again.update) == (rule.name, rule.update)
        # Shapes are partial functions, which are not equal.
        assert repr(again.slots) == repr(rule.slots)


def test_configs_come_back() -> None:
    for rule in MODERN_RULES:
        made = RuleOptimizer(rule)
        assert RuleOptimizer.from_config(made.get_config()).rule == rule

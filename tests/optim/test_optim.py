"""`thalweg.optim` in place of `torch.optim`: names, errors, groups, closures, hooks, schedules."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import optimizer as base

from rulebook import assert_same, slow_unless
from thalweg import optim
from thalweg.optim.step_options import KEYWORDS
from torch_inputs import (
    CLASSES,
    INFOS,
    INPUTS,
    ROWS,
    SCHEDULES,
    STEP_ERROR,
    params_of,
    set_grads,
    shapes_of,
)  # fmt: skip

FIRST = {case.name: case for case in reversed(INPUTS)}


def test_every_name_of_torch_is_here() -> None:
    public = {name for name in dir(torch.optim) if not name.startswith("_")}
    assert public <= set(dir(optim))
    assert set(torch.optim.__all__) <= set(optim.__all__)
    for name in public - {*CLASSES, "Muon"}:
        assert getattr(optim, name) is getattr(torch.optim, name)
    assert optim.Muon.__module__.startswith("thalweg.")
    with pytest.raises(AttributeError, match="nothing"):
        _ = optim.nothing


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_torchs(name: str) -> None:
    ours, torchs = getattr(optim, name), getattr(torch.optim, name)
    assert issubclass(ours, torchs)
    assert ours.__name__ == name
    taken = list(inspect.signature(ours).parameters.values())
    assert taken[: -len(KEYWORDS)] == list(inspect.signature(torchs).parameters.values())
    assert f"torch.optim.{name}" in ours.__doc__
    made = ours(params_of(torch.float32))
    assert made.defaults == torchs(params_of(torch.float32)).defaults
    assert repr(made) == repr(torchs(params_of(torch.float32)))


def _outcome(module: Any, name: str, each: Any) -> tuple[type, str]:
    given = each.optimizer_error_input
    params = given.params if given.params is not None else params_of(torch.float32, ((2, 2),))
    params = copy.deepcopy(params)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = getattr(module, name)(params, **copy.deepcopy(given.kwargs))
            if each.error_on == STEP_ERROR:
                made.step()
    except Exception as error:
        return type(error), str(error)
    return type(None), ""


@pytest.mark.parametrize("name", CLASSES)
def test_errors_are_torchs(name: str) -> None:
    info = INFOS[name]
    for each in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        got, wanted = (_outcome(module, name, each) for module in (optim, torch.optim))
        assert got == wanted, each.optimizer_error_input.desc


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own sparse tensors
@pytest.mark.parametrize("name", CLASSES)
def test_gradients_of_the_wrong_kind_are_refused_in_torchs_words(name: str) -> None:
    refused = []
    for module in (torch.optim, optim):
        params = params_of(torch.float32, ROWS)
        made = FIRST[name].make(module, params)
        set_grads(params, 0, sparse=name != "SparseAdam")
        before = [param.detach().clone() for param in params]
        try:
            made.step()
        except RuntimeError as error:
            refused.append(str(error))
            assert made.state_dict()["state"] in ({}, {0: {}})
            assert_same([param.detach() for param in params], before)
    assert len(refused) in (0, 2)
    assert len(set(refused)) < 2


GROUPS = {
    "Adam": [{"lr": 0.1}, {"betas": (0.5, 0.6), "weight_decay": 0.1}, {"amsgrad": True}],
    "AdamW": [{"lr": 0.1}, {"eps": 1e-3, "weight_decay": 0.0}, {"maximize": True}],
    "SGD": [{"lr": 0.1}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "lr": 0.2}],
    "RMSprop": [{"alpha": 0.5}, {"momentum": 0.9}, {"centered": True}],
    "NAdam": [{"betas": (0.5, 0.9)}, {"momentum_decay": 0.1}, {"lr": 0.3}],
    "ASGD": [{"t0": 1}, {"lambd": 0.1}, {"lr": 0.3}],
    "Adafactor": [{"lr": 0.1}, {"eps": (1e-3, 1e-2), "d": 1.5}, {"weight_decay": 0.1}],
    "Rprop": [{"lr": 0.1}, {"etas": (0.1, 3.0)}, {"step_sizes": (1e-3, 1e-2)}],
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_have_options_of_their_own(name: str) -> None:
    both = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32, ((3, 2), (4,), (5,), (2,)))
        *others, last = params
        groups = [{"params": [p], **own} for p, own in zip(others, GROUPS[name], strict=True)]
        made = FIRST[name].make(module, groups)
        for step in range(6):
            if step == 2:
                made.add_param_group({"params": [last], "lr": 0.5})
            if step == 4:
                made.param_groups[0]["lr"] *= 0.1
            set_grads(params, step)
            made.step()
        both.append(made)
    for a, b in zip(*(made.param_groups for made in both), strict=True):
        for p, q in zip(a["params"], b["params"], strict=True):
            torch.testing.assert_close(p, q, rtol=3e-6, atol=1e-7)
            mine, torchs = both[0].state.get(p, {}), both[1].state.get(q, {})
            assert list(mine) == list(torchs)


def test_a_closure_is_called_once_with_gradients() -> None:
    (param,) = params = params_of(torch.float32, ((3,),))
    ours, calls = optim.SGD(params, lr=0.1), []

    def closure() -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        ours.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    expected = param.detach() - 0.1 * (2 * param.detach())
    with torch.no_grad():
        loss = ours.step(closure)
    assert calls == [True]
    assert loss.requires_grad
    torch.testing.assert_close(param.detach(), expected)


def test_hooks_come_in_torchs_order() -> None:
    params = params_of(torch.float32)
    ours, seen = optim.Adam(params), []
    set_grads(params, 0)
    before = params[0].detach().clone()

    def hook(name: str) -> Callable[..., None]:
        return lambda optimizer, args, kwargs: seen.append(
            (name, torch.equal(params[0].detach(), before))
        )

    handles = [
        base.register_optimizer_step_post_hook(hook("global post")),
        ours.register_step_post_hook(hook("post")),
        ours.register_step_pre_hook(hook("pre")),
        base.register_optimizer_step_pre_hook(hook("global pre")),
    ]
    try:
        ours.step()
    finally:
        for handle in handles:
            handle.remove()
    assert seen == [
        ("global pre", True), ("pre", True), ("post", False), ("global post", False)
    ]  # fmt: skip


def test_hooks_come_once_where_torch_takes_the_step() -> None:
    params = params_of(torch.float32, ((3,),))
    torch.optim.Adam(params_of(torch.float32))  # its step has hooks around it from now on
    made = params[0].clone()
    made.retain_grad()
    made.grad = torch.ones(3)
    ours, seen = optim.Adam([made], differentiable=True), []
    ours.register_step_post_hook(lambda *args: seen.append(1))
    ours.step()
    assert seen == [1]
    assert "Addcdiv" in str(made.grad_fn)


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_set_the_rate(name: str, rate: Any) -> None:
    both = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32)
        made = module.SGD(params, lr=copy.deepcopy(rate), momentum=0.9)
        schedule, rates = SCHEDULES[name](made), []
        for step in range(8):
            set_grads(params, step)
            made.step()
            schedule.step(*([1.0] if name == "ReduceLROnPlateau" else []))
            rates.append(float(made.param_groups[0]["lr"]))
        both.append((rates, params))
    assert both[0][0] == both[1][0]
    assert len(set(both[0][0])) > 1
    for got, wanted in zip(both[0][1], both[1][1], strict=True):
        torch.testing.assert_close(got, wanted, rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad", "Adafactor"])
def test_a_scaler_of_gradients(name: str, fused: bool) -> None:
    if fused and name == "Adafactor":
        pytest.skip("has no such form in torch")
    both = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32, shapes_of(name))
        made = getattr(module, name)(params, **({"fused": True} if fused else {}), foreach=None)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        scaler.scale(torch.ones(()))
        scales = []
        for step in range(6):
            set_grads(params, step)
            scale = scaler.get_scale()
            for param in params:
                param.grad = param.grad * scale
            if step == 3:
                params[1].grad[2] = float("inf")
            before = params[0].detach().clone()
            scaler.step(made)
            assert torch.equal(before, params[0].detach()) == (step == 3)
            scaler.update()
            scales.append(scaler.get_scale())
        both.append((scales, params, made))
    assert both[0][0] == both[1][0]
    for got, wanted in zip(both[0][1], both[1][1], strict=True):
        torch.testing.assert_close(got, wanted, rtol=3e-6, atol=1e-7)


def test_a_step_that_fails_leaves_no_state_behind() -> None:
    params = params_of(torch.float32, ((3,), (4,)))
    ours = optim.SGD([{"params": params[:1], "momentum": 0.9}, {"params": params[1:]}], lr=0.1)
    set_grads(params, 0)
    ours.param_groups[1]["lr"] = "much"
    before = [param.detach().clone() for param in params]
    with pytest.raises(TypeError) as caught:
        ours.step()
    assert "no variable and no slot has changed" in caught.value.__notes__[0]
    assert_same([param.detach() for param in params], before)
    assert all(not own for own in ours.state.values())


def test_parameters_that_share_memory_are_refused() -> None:
    memory = torch.zeros(6)
    params = [torch.nn.Parameter(memory[:4]), torch.nn.Parameter(memory[2:])]
    ours = optim.Adam([("a", params[0]), ("b", params[1])])
    for param in params:
        param.grad = torch.ones_like(param)
    with pytest.raises(ValueError, match="'a' and 'b' in one step: they share memory"):
        ours.step()


def test_denormals_are_kept_unless_they_are_to_be_flushed() -> None:
    import thalweg

    kept = float(torch.tensor(2e-40) - torch.tensor(1e-40))
    for choice, expected in ((None, kept), ("flush", 0.0)):
        (param,) = params = [torch.full((3,), 2e-40).requires_grad_()]
        ours = optim.SGD(params, lr=1.0)
        param.grad = torch.full((3,), 1e-40)
        with thalweg.engine(denormals=choice):
            ours.step()
        assert param.tolist() == [expected] * 3


def _clipped(module: Any, params: list[Any], made: Any, steps: int, by: str) -> None:
    """Steps as torch's users clip: before the step, into the gradients."""
    for step in range(steps):
        set_grads(params, step)
        if module is torch.optim and by == "norm":
            torch.nn.utils.clip_grad_norm_(params, 1.5)
        elif module is torch.optim:
            torch.nn.utils.clip_grad_value_(params, 0.5)
        made.step()


@pytest.mark.parametrize("by", ["norm", "value"])
@pytest.mark.parametrize("several", [False, True], ids=["one rule", "several rules"])
def test_gradients_are_clipped_in_the_step(by: str, several: bool) -> None:
    both = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32)
        limits = {"norm": {"clip_grad_norm": 1.5}, "value": {"clip_grad_value": 0.5}}[by]
        groups = [{"params": params[:2]}, {"params": params[2:], "momentum": 0.9 * several}]
        made = module.SGD(groups, lr=0.1, **(limits if module is optim else {}))
        _clipped(module, params, made, 4, by)
        both.append(params)
    for got, wanted in zip(*both, strict=True):
        torch.testing.assert_close(got, wanted, rtol=3e-6, atol=1e-7)


def test_a_step_tells_what_became_of_it() -> None:
    params = params_of(torch.float32)
    ours = optim.Adam(params, clip_grad_norm=2.0, fused_unscale=True)
    assert ours.last_step is None
    set_grads(params, 0)
    before = [param.grad.clone() for param in params]
    ours.step()
    norm = torch.nn.utils.get_total_norm([param.grad for param in params])
    last = ours.last_step
    assert last is not None
    assert (last.taken, last.reason, last.count) == (True, "", 1)
    assert last.grad_norm == pytest.approx(norm.item(), rel=1e-6)
    assert last.clip_factor == pytest.approx(2.0 / norm.item(), rel=1e-6)
    assert_same([param.grad for param in params], before)
    ours.grad_scale, ours.found_inf = torch.tensor(4.0), torch.tensor(1.0)
    ours.step()
    assert ours.last_step is not None
    assert not ours.last_step.taken
    assert ours.last_step.count == 1
    assert "not finite" in ours.last_step.reason
    ours.found_inf = torch.tensor(0.0)
    ours.step()
    assert ours.last_step is not None
    assert ours.last_step.grad_norm == pytest.approx(norm.item() / 4, rel=1e-6)


@pytest.mark.parametrize(
    "name", [slow_unless(n in ("AdamW", "RMSprop"), n) for n in CLASSES if n != "SparseAdam"]
)
def test_a_scaler_leaves_unscaling_to_the_step(name: str) -> None:
    """`fused_unscale=True`, for every class; torch has it for four, by `fused=True`."""
    both = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32, shapes_of(name))
        made = getattr(module, name)(params, **({"fused_unscale": True} if module is optim else {}))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        scaler.scale(torch.ones(()))
        for step in range(5):
            set_grads(params, step)
            for param in params:
                param.grad = param.grad * scaler.get_scale()
            if step == 2:
                params[0].grad[1, 1] = float("nan")
            scaler.step(made)
            if module is optim:
                assert made.last_step.taken == (step != 2)
            scaler.update()
        both.append(params)
    for got, wanted in zip(*both, strict=True):
        torch.testing.assert_close(got, wanted, rtol=3e-6, atol=1e-7)


FUSED = ("Adam", "AdamW", "SGD", "Adagrad")  # of torch's classes


@pytest.mark.parametrize(
    ("cls", "options"),
    [(getattr(optim, name), {"fused_unscale": True}) for name in CLASSES]
    + [(getattr(optim, name), {"fused": True}) for name in FUSED]
    + [(optim.tensorflow.Adam, {"fused_unscale": True})],
    ids=str,
)
def test_a_scaler_steps_an_optimizer_without_gradients(cls: Any, options: dict[str, Any]) -> None:
    used, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    first, made = (cls([param], lr=0.1, **options) for param in (used, unused))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(2):
        first.zero_grad()
        if cls is optim.SparseAdam:
            scaler.scale(torch.ones(()))
            used.grad = torch.sparse_coo_tensor([[0]], [8.0], (2,), check_invariants=True)
        else:
            scaler.scale(used.sum()).backward()
        scaler.step(first)
        scaler.step(made)
        scaler.update()
        assert first.last_step.count == step + 1
    assert made.last_step is None
    assert not {"found_inf", "grad_scale"} & set(vars(made))
    assert torch.equal(unused.detach(), torch.ones(2))
    set_grads([unused], 0, sparse=cls is optim.SparseAdam)
    made.step()
    assert made.last_step.taken


@pytest.mark.parametrize("made", [optim.Adam, optim.tensorflow.Adam])
def test_a_step_that_failed_forgets_the_scale(made: Any) -> None:
    both = []
    for fails in (False, True):
        params = params_of(torch.float32, ((3,),))
        ours = made(params, lr=0.1, fused_unscale=True, clip_grad_norm=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(torch.ones(()))
        set_grads(params, 0)
        params[0].grad = params[0].grad * 8.0
        if fails:
            ours.param_groups[0]["lr"] = "much"
            with pytest.raises(TypeError):
                scaler.step(ours)
            assert not {"found_inf", "grad_scale"} & set(vars(ours))
            ours.param_groups[0]["lr"] = 0.1
        scaler.step(ours)  # torch multiplies the scale by one that it finds
        scaler.update()
        both.append((params[0].detach(), torch.tensor(ours.last_step.grad_norm)))
    assert_same(*both)


@pytest.mark.parametrize("name", ["RMSprop", "Adam"])
def test_no_scaled_gradient_is_left_to_torch(name: str) -> None:
    (param,) = params_of(torch.float32, ((3,),))
    ours = getattr(optim, name)([param], differentiable=True, fused_unscale=True)
    set_grads([param], 0)
    before = param.detach().clone()
    ours.grad_scale, ours.found_inf = torch.tensor(8.0), torch.tensor(0.0)
    with pytest.raises(NotImplementedError, match=f"{name} with fused_unscale takes steps"):
        ours.step()
    assert_same([param.detach()], [before])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clip_grad_norm": -1.0}, "clip_grad_norm must be a number from 0 on, not -1.0"),
        ({"clip_grad_value": float("inf")}, "clip_grad_value must be a number from 0 on"),
        ({"clip_grad_norm": "much"}, "clip_grad_norm must be a number, not 'much'"),
        ({"fused_unscale": 1}, "fused_unscale must be a bool, not 1"),
    ],
)
def test_bad_surroundings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        optim.Adam(params_of(torch.float32), **arguments)


def test_copies_are_clipped_as_well() -> None:
    made = optim.Adam(params_of(torch.float32), clip_grad_norm=1.0, fused_unscale=True)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other._around == made._around
        assert other._step_supports_amp_scaling


def test_what_only_torch_computes_is_not_clipped_in_silence() -> None:
    ours = optim.Adam([torch.ones(2, requires_grad=True, device="meta")], clip_grad_norm=1.0)
    ours.param_groups[0]["params"][0].grad = torch.ones(2, device="meta")
    with pytest.raises(NotImplementedError, match="Adam with clip_grad_norm takes steps on"):
        ours.step()


def test_a_constraint_follows_the_update() -> None:
    params = params_of(torch.float32, ((5,),))
    params[0].constraint = lambda value: value.clamp(min=0.0)
    ours = optim.SGD(params, lr=0.1)
    set_grads(params, 0)
    expected = (params[0].detach() - 0.1 * params[0].grad).clamp(min=0.0)
    ours.step()
    torch.testing.assert_close(params[0].detach(), expected)
    assert (params[0] == 0).any()

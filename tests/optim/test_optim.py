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


def test_every_torch_name_is_exported() -> None:
    public = {name for name in dir(torch.optim) if not name.startswith("_")}
    assert public <= set(dir(optim))
    assert set(torch.optim.__all__) <= set(optim.__all__)
    for name in public - {*CLASSES, "Muon"}:
        assert getattr(optim, name) is getattr(torch.optim, name)
    assert optim.Muon.__module__.startswith("thalweg.")
    with pytest.raises(AttributeError, match="nothing"):
        _ = optim.nothing


@pytest.mark.parametrize("name", CLASSES)
def test_classes_match_torch(name: str) -> None:
    cls, torch_cls = getattr(optim, name), getattr(torch.optim, name)
    assert issubclass(cls, torch_cls)
    assert cls.__name__ == name
    parameters = list(inspect.signature(cls).parameters.values())
    assert parameters[: -len(KEYWORDS)] == list(inspect.signature(torch_cls).parameters.values())
    assert f"torch.optim.{name}" in cls.__doc__
    opt = cls(params_of(torch.float32))
    assert opt.defaults == torch_cls(params_of(torch.float32)).defaults
    assert repr(opt) == repr(torch_cls(params_of(torch.float32)))


def _outcome(module: Any, name: str, error_input: Any) -> tuple[type, str]:
    optim_input = error_input.optimizer_error_input
    params = (
        optim_input.params
        if optim_input.params is not None
        else params_of(torch.float32, ((2, 2),))
    )
    params = copy.deepcopy(params)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            opt = getattr(module, name)(params, **copy.deepcopy(optim_input.kwargs))
            if error_input.error_on == STEP_ERROR:
                opt.step()
    except Exception as error:
        return type(error), str(error)
    return type(None), ""


@pytest.mark.parametrize("name", CLASSES)
def test_errors_match_torch(name: str) -> None:
    info = INFOS[name]
    for error_input in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        actual, expected = (_outcome(module, name, error_input) for module in (optim, torch.optim))
        assert actual == expected, error_input.optimizer_error_input.desc


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own sparse tensors
@pytest.mark.parametrize("name", CLASSES)
def test_sparse_gradient_errors_match_torch(name: str) -> None:
    messages = []
    for module in (torch.optim, optim):
        params = params_of(torch.float32, ROWS)
        opt = FIRST[name].make(module, params)
        set_grads(params, 0, sparse=name != "SparseAdam")
        previous = [param.detach().clone() for param in params]
        try:
            opt.step()
        except RuntimeError as error:
            messages.append(str(error))
            assert opt.state_dict()["state"] in ({}, {0: {}})
            assert_same([param.detach() for param in params], previous)
    assert len(messages) in (0, 2)
    assert len(set(messages)) < 2


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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", GROUPS)
def test_groups_with_other_options(name: str) -> None:
    outcomes = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32, ((3, 2), (4,), (5,), (2,)))
        *grouped, added_param = params
        groups = [{"params": [p], **extra} for p, extra in zip(grouped, GROUPS[name], strict=True)]
        opt = FIRST[name].make(module, groups)
        for step in range(6):
            if step == 2:
                opt.add_param_group({"params": [added_param], "lr": 0.5})
            if step == 4:
                opt.param_groups[0]["lr"] *= 0.1
            set_grads(params, step)
            opt.step()
        outcomes.append(opt)
    for a, b in zip(*(opt.param_groups for opt in outcomes), strict=True):
        for p, q in zip(a["params"], b["params"], strict=True):
            torch.testing.assert_close(p, q, rtol=3e-6, atol=1e-7)
            state, torch_state = outcomes[0].state.get(p, {}), outcomes[1].state.get(q, {})
            assert list(state) == list(torch_state)


def test_a_closure_is_called_once_with_gradients() -> None:
    (param,) = params = params_of(torch.float32, ((3,),))
    opt, calls = optim.SGD(params, lr=0.1), []

    def closure() -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        opt.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    expected = param.detach() - 0.1 * (2 * param.detach())
    with torch.no_grad():
        loss = opt.step(closure)
    assert calls == [True]
    assert loss.requires_grad
    torch.testing.assert_close(param.detach(), expected)


def test_hook_order_matches_torch() -> None:
    params = params_of(torch.float32)
    opt, calls = optim.Adam(params), []
    set_grads(params, 0)
    previous = params[0].detach().clone()

    def hook(name: str) -> Callable[..., None]:
        return lambda optimizer, args, kwargs: calls.append(
            (name, torch.equal(params[0].detach(), previous))
        )

    handles = [
        base.register_optimizer_step_post_hook(hook("global post")),
        opt.register_step_post_hook(hook("post")),
        opt.register_step_pre_hook(hook("pre")),
        base.register_optimizer_step_pre_hook(hook("global pre")),
    ]
    try:
        opt.step()
    finally:
        for handle in handles:
            handle.remove()
    assert calls == [
        ("global pre", True), ("pre", True), ("post", False), ("global post", False)
    ]  # fmt: skip


def test_hooks_are_called_once_in_torch_step() -> None:
    params = params_of(torch.float32, ((3,),))
    torch.optim.Adam(params_of(torch.float32))  # its step has hooks around it from now on
    param = params[0].clone()
    param.retain_grad()
    param.grad = torch.ones(3)
    opt, calls = optim.Adam([param], differentiable=True), []
    opt.register_step_post_hook(lambda *args: calls.append(1))
    opt.step()
    assert calls == [1]
    assert "Addcdiv" in str(param.grad_fn)


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_set_the_rate(name: str, rate: Any) -> None:
    outcomes = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32)
        opt = module.SGD(params, lr=copy.deepcopy(rate), momentum=0.9)
        schedule, rates = SCHEDULES[name](opt), []
        for step in range(8):
            set_grads(params, step)
            opt.step()
            schedule.step(*([1.0] if name == "ReduceLROnPlateau" else []))
            rates.append(float(opt.param_groups[0]["lr"]))
        outcomes.append((rates, params))
    assert outcomes[0][0] == outcomes[1][0]
    assert len(set(outcomes[0][0])) > 1
    for actual, expected in zip(outcomes[0][1], outcomes[1][1], strict=True):
        torch.testing.assert_close(actual, expected, rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad", "Adafactor"])
def test_grad_scaler_matches_torch(name: str, fused: bool) -> None:
    if fused and name == "Adafactor":
        pytest.skip("has no such form in torch")
    outcomes = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32, shapes_of(name))
        opt = getattr(module, name)(params, **({"fused": True} if fused else {}), foreach=None)
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
            previous = params[0].detach().clone()
            scaler.step(opt)
            assert torch.equal(previous, params[0].detach()) == (step == 3)
            scaler.update()
            scales.append(scaler.get_scale())
        outcomes.append((scales, params, opt))
    assert outcomes[0][0] == outcomes[1][0]
    for actual, expected in zip(outcomes[0][1], outcomes[1][1], strict=True):
        torch.testing.assert_close(actual, expected, rtol=3e-6, atol=1e-7)


def test_failed_step_leaves_no_state() -> None:
    params = params_of(torch.float32, ((3,), (4,)))
    opt = optim.SGD([{"params": params[:1], "momentum": 0.9}, {"params": params[1:]}], lr=0.1)
    set_grads(params, 0)
    opt.param_groups[1]["lr"] = "much"
    previous = [param.detach().clone() for param in params]
    with pytest.raises(TypeError) as error:
        opt.step()
    assert "no variable and no slot has changed" in error.value.__notes__[0]
    assert_same([param.detach() for param in params], previous)
    assert all(not state for state in opt.state.values())


def test_shared_memory_raises() -> None:
    memory = torch.zeros(6)
    params = [torch.nn.Parameter(memory[:4]), torch.nn.Parameter(memory[2:])]
    opt = optim.Adam([("a", params[0]), ("b", params[1])])
    for param in params:
        param.grad = torch.ones_like(param)
    with pytest.raises(ValueError, match="'a' and 'b' in one step: they share memory"):
        opt.step()


def test_denormals_are_kept_by_default() -> None:
    import thalweg

    difference = float(torch.tensor(2e-40) - torch.tensor(1e-40))
    for choice, expected in ((None, difference), ("flush", 0.0)):
        (param,) = params = [torch.full((3,), 2e-40).requires_grad_()]
        opt = optim.SGD(params, lr=1.0)
        param.grad = torch.full((3,), 1e-40)
        with thalweg.engine(denormals=choice):
            opt.step()
        assert param.tolist() == [expected] * 3


def _clip_and_step(module: Any, params: list[Any], opt: Any, steps: int, kind: str) -> None:
    """Take steps, with torch's gradients clipped in place before each."""
    for step in range(steps):
        set_grads(params, step)
        if module is torch.optim and kind == "norm":
            torch.nn.utils.clip_grad_norm_(params, 1.5)
        elif module is torch.optim:
            torch.nn.utils.clip_grad_value_(params, 0.5)
        opt.step()


@pytest.mark.parametrize("kind", ["norm", "value"])
@pytest.mark.parametrize("has_two_rules", [False, True], ids=["one rule", "several rules"])
def test_gradients_are_clipped_in_the_step(kind: str, has_two_rules: bool) -> None:
    outcomes = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32)
        limits = {"norm": {"clip_grad_norm": 1.5}, "value": {"clip_grad_value": 0.5}}[kind]
        groups = [{"params": params[:2]}, {"params": params[2:], "momentum": 0.9 * has_two_rules}]
        opt = module.SGD(groups, lr=0.1, **(limits if module is optim else {}))
        _clip_and_step(module, params, opt, 4, kind)
        outcomes.append(params)
    for actual, expected in zip(*outcomes, strict=True):
        torch.testing.assert_close(actual, expected, rtol=3e-6, atol=1e-7)


def test_last_step_reports_the_step() -> None:
    params = params_of(torch.float32)
    opt = optim.Adam(params, clip_grad_norm=2.0, fused_unscale=True)
    assert opt.last_step is None
    set_grads(params, 0)
    previous = [param.grad.clone() for param in params]
    opt.step()
    norm = torch.nn.utils.get_total_norm([param.grad for param in params])
    last_step = opt.last_step
    assert last_step is not None
    assert (last_step.taken, last_step.reason, last_step.count) == (True, "", 1)
    assert last_step.grad_norm == pytest.approx(norm.item(), rel=1e-6)
    assert last_step.clip_factor == pytest.approx(2.0 / norm.item(), rel=1e-6)
    assert_same([param.grad for param in params], previous)
    opt.grad_scale, opt.found_inf = torch.tensor(4.0), torch.tensor(1.0)
    opt.step()
    assert opt.last_step is not None
    assert not opt.last_step.taken
    assert opt.last_step.count == 1
    assert "not finite" in opt.last_step.reason
    opt.found_inf = torch.tensor(0.0)
    opt.step()
    assert opt.last_step is not None
    assert opt.last_step.grad_norm == pytest.approx(norm.item() / 4, rel=1e-6)


@pytest.mark.parametrize(
    "name", [slow_unless(n in ("AdamW", "RMSprop"), n) for n in CLASSES if n != "SparseAdam"]
)
def test_fused_unscale_matches_torch(name: str) -> None:
    """`fused_unscale=True`, for every class; torch has it for four, by `fused=True`."""
    outcomes = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32, shapes_of(name))
        opt = getattr(module, name)(params, **({"fused_unscale": True} if module is optim else {}))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        scaler.scale(torch.ones(()))
        for step in range(5):
            set_grads(params, step)
            for param in params:
                param.grad = param.grad * scaler.get_scale()
            if step == 2:
                params[0].grad[1, 1] = float("nan")
            scaler.step(opt)
            if module is optim:
                assert opt.last_step.taken == (step != 2)
            scaler.update()
        outcomes.append(params)
    for actual, expected in zip(*outcomes, strict=True):
        torch.testing.assert_close(actual, expected, rtol=3e-6, atol=1e-7)


FUSED = ("Adam", "AdamW", "SGD", "Adagrad")  # of torch's classes


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("cls", "options"),
    [(getattr(optim, name), {"fused_unscale": True}) for name in CLASSES]
    + [(getattr(optim, name), {"fused": True}) for name in FUSED]
    + [(optim.tensorflow.Adam, {"fused_unscale": True})],
    ids=str,
)
def test_scaler_with_optimizer_without_gradients(cls: Any, options: dict[str, Any]) -> None:
    used, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    first, opt = (cls([param], lr=0.1, **options) for param in (used, unused))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(2):
        first.zero_grad()
        if cls is optim.SparseAdam:
            scaler.scale(torch.ones(()))
            used.grad = torch.sparse_coo_tensor([[0]], [8.0], (2,), check_invariants=True)
        else:
            scaler.scale(used.sum()).backward()
        scaler.step(first)
        scaler.step(opt)
        scaler.update()
        assert first.last_step.count == step + 1
    assert opt.last_step is None
    assert not {"found_inf", "grad_scale"} & set(vars(opt))
    assert torch.equal(unused.detach(), torch.ones(2))
    set_grads([unused], 0, sparse=cls is optim.SparseAdam)
    opt.step()
    assert opt.last_step.taken


@pytest.mark.parametrize("cls", [optim.Adam, optim.tensorflow.Adam])
def test_failed_step_removes_grad_scale(cls: Any) -> None:
    outcomes = []
    for fails in (False, True):
        params = params_of(torch.float32, ((3,),))
        opt = cls(params, lr=0.1, fused_unscale=True, clip_grad_norm=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(torch.ones(()))
        set_grads(params, 0)
        params[0].grad = params[0].grad * 8.0
        if fails:
            opt.param_groups[0]["lr"] = "much"
            with pytest.raises(TypeError):
                scaler.step(opt)
            assert not {"found_inf", "grad_scale"} & set(vars(opt))
            opt.param_groups[0]["lr"] = 0.1
        scaler.step(opt)  # torch multiplies the scale by one that it finds
        scaler.update()
        outcomes.append((params[0].detach(), torch.tensor(opt.last_step.grad_norm)))
    assert_same(*outcomes)


@pytest.mark.parametrize("name", ["RMSprop", "Adam"])
def test_fused_unscale_with_differentiable_raises(name: str) -> None:
    (param,) = params_of(torch.float32, ((3,),))
    opt = getattr(optim, name)([param], differentiable=True, fused_unscale=True)
    set_grads([param], 0)
    previous = param.detach().clone()
    opt.grad_scale, opt.found_inf = torch.tensor(8.0), torch.tensor(0.0)
    with pytest.raises(NotImplementedError, match=f"{name} with fused_unscale takes steps"):
        opt.step()
    assert_same([param.detach()], [previous])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clip_grad_norm": -1.0}, "clip_grad_norm must be a number from 0 on, not -1.0"),
        ({"clip_grad_value": float("inf")}, "clip_grad_value must be a number from 0 on"),
        ({"clip_grad_norm": "much"}, "clip_grad_norm must be a number, not 'much'"),
        ({"fused_unscale": 1}, "fused_unscale must be a bool, not 1"),
    ],
)
def test_invalid_options_raise(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        optim.Adam(params_of(torch.float32), **arguments)


def test_copies_keep_options() -> None:
    opt = optim.Adam(params_of(torch.float32), clip_grad_norm=1.0, fused_unscale=True)
    for copied_opt in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        assert copied_opt.step_options == opt.step_options
        assert copied_opt._step_supports_amp_scaling


def test_clipping_of_unsupported_steps_raises() -> None:
    opt = optim.Adam([torch.ones(2, requires_grad=True)], clip_grad_norm=1.0, differentiable=True)
    opt.param_groups[0]["params"][0].grad = torch.ones(2)
    with pytest.raises(NotImplementedError, match="Adam with clip_grad_norm takes steps on"):
        opt.step()


def test_constraint_is_applied_after_the_update() -> None:
    params = params_of(torch.float32, ((5,),))
    params[0].constraint = lambda value: value.clamp(min=0.0)
    opt = optim.SGD(params, lr=0.1)
    set_grads(params, 0)
    expected = (params[0].detach() - 0.1 * params[0].grad).clamp(min=0.0)
    opt.step()
    torch.testing.assert_close(params[0].detach(), expected)
    assert (params[0] == 0).any()

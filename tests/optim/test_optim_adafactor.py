"""`optim.Adafactor` compared with `torch.optim.Adafactor`: shapes, options, fallback to torch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thalweg
from rulebook import assert_same
from thalweg import checkpoint, optim
from thalweg.errors import InvalidArgumentError, LayoutError

SHAPES = ((), (7,), (1, 1), (24, 16), (1, 40), (40, 1), (6, 8, 3, 3), (5, 4, 1, 1), (2, 3, 4),
          (70, 1030))  # fmt: skip
BOUND = 1e-5  # relative to the movement
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"lr": 0.5},
    {"lr": torch.tensor(0.02)},
    {"beta2_decay": -0.5},
    {"eps": (None, 0.1)},
    {"eps": (1e-2, 1e-3)},
    {"eps": (1.0, 0.0)},
    {"d": 1.5, "lr": 1.0},
    {"d": 8.0},
    {"weight_decay": 0.1},
    {"maximize": True, "weight_decay": 0.01},
)


def params_of(dtype: torch.dtype, shapes: Any = SHAPES) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    tensors = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes)
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def give(params: Any, step: int) -> None:
    rng = torch.Generator().manual_seed(100 + step)
    for param in params:
        grad = torch.randn(param.shape, generator=rng, dtype=torch.float64) * 10 ** (step % 3 - 1)
        param.grad = grad.to(param.dtype)


def movement_of(params: Any, start: Any) -> Tensor:
    pairs = zip(params, start, strict=True)
    return torch.cat([(p.detach().double() - s.detach().double()).ravel() for p, s in pairs])


def run_steps(opt: Any, count: int = 5, first: int = 0) -> Any:
    for step in range(first, first + count):
        give([param for group in opt.param_groups for param in group["params"]], step)
        opt.step()
    return opt


def tensors_of(opt: Any) -> list[Tensor]:
    """Return parameters and slots."""
    params = [param for group in opt.param_groups for param in group["params"]]
    slots = [value for param in params for value in opt.state.get(param, {}).values()]
    return [value.detach() for value in (*params, *slots) if isinstance(value, Tensor)]


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        (options, dtype)
        for place, options in enumerate(OPTIONS)
        for dtype in (torch.float32, torch.float64)
        # Torch computes with a tensor of float32 in that; others meet one dtype each.
        if not place or dtype == (torch.float64 if place % 2 else torch.float32)
    ],
    ids=str,
)
@pytest.mark.one_in(7)
def test_params_match_torch(options: dict[str, Any], dtype: torch.dtype) -> None:
    optimizers = []
    for module in (optim, torch.optim):
        params = params_of(dtype)
        optimizers.append(run_steps(module.Adafactor(params, **copy.deepcopy(options))))
    start, bound = params_of(dtype), BOUND if dtype == torch.float32 else 1e-14
    for param, ref, first in zip(
        *(m.param_groups[0]["params"] for m in optimizers), start, strict=True
    ):
        movement = movement_of([ref], [first]).norm()
        unit = torch.finfo(dtype).eps * ref.detach().abs().max()
        assert movement_of([param], [ref]).norm() <= bound * movement + unit, tuple(first.shape)
        state, expected = optimizers[0].state[param], optimizers[1].state[ref]
        assert list(state) == list(expected)
        for name, value in expected.items():
            assert (state[name].shape, state[name].dtype) == (value.shape, value.dtype)
            torch.testing.assert_close(state[name], value, rtol=max(1e-12, bound), atol=0)


@pytest.mark.parametrize(
    "options",
    [{"lr": 0.5}, {"d": 0.5}, {"beta2_decay": -0.5}, {"eps": (1e-2, 0.1)}, {"weight_decay": 0.1}],
    ids=str,
)
def test_groups_with_other_options_match_torch(options: dict[str, Any]) -> None:
    optimizers = []
    for module in (optim, torch.optim):
        params, second_params = (params_of(torch.float32) for _ in range(2))
        groups: list[dict[str, Any]] = [{"params": params}, {"params": second_params, **options}]
        optimizers.append(run_steps(module.Adafactor(groups, lr=0.3)))
    starts = params_of(torch.float32)
    for group, torch_group in zip(*(opt.param_groups for opt in optimizers), strict=True):
        for param, ref, start in zip(group["params"], torch_group["params"], starts, strict=True):
            movement = movement_of([ref], [start]).norm()
            unit = torch.finfo(torch.float32).eps * ref.detach().abs().max()
            assert movement_of([param], [ref]).norm() <= BOUND * movement + unit, tuple(start.shape)


def test_bfloat16_step_is_rounded_once() -> None:
    """Compare with torch in float32: torch rounds bfloat16 after each operation."""
    params = params_of(torch.bfloat16)
    opt = optim.Adafactor(params, eps=(1e-7, 1e-3))
    for step in range(4):
        wide = [param.detach().float().requires_grad_() for param in params]
        ref = torch.optim.Adafactor(wide, eps=(1e-7, 1e-3))
        for param, state in zip(wide, (opt.state.get(param, {}) for param in params), strict=True):
            if state:
                ref.state[param] = {key: value.float().clone() for key, value in state.items()}
        give(params, step)
        for param, wide_param in zip(params, wide, strict=True):
            wide_param.grad = param.grad.float()
        opt.step()
        ref.step()
        for param, wide_param in zip(params, wide, strict=True):
            half = torch.finfo(torch.bfloat16).eps / 2 * wide_param.abs()
            assert ((param.float() - wide_param).abs() <= 1.01 * half + 1e-7).all()


@pytest.mark.parametrize("extreme", [float("nan"), float("inf"), -float("inf"), 1e30, 1e-40, -0.0])
@pytest.mark.parametrize("shape", [(9,), (5, 9), (2, 3, 4)], ids=str)
def test_extreme_gradients_match_torch(shape: Any, extreme: float) -> None:
    trained = []
    for module in (optim, torch.optim):
        (param,) = params = params_of(torch.float32, (shape,))
        opt = module.Adafactor(params)
        for step in range(3):
            give(params, step)
            if step == 1:
                param.grad[(0,) * len(shape)] = extreme
            opt.step()
        trained.append(param.detach())
    torch.testing.assert_close(*trained, rtol=1e-5, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("extreme", [float("nan"), float("inf")])
def test_nonfinite_params_match_torch(extreme: float) -> None:
    trained = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32, ((9,), (5, 9)))
        with torch.no_grad():
            params[0][3] = params[1][2, 2] = extreme
        run_steps(module.Adafactor(params), 2)
        trained.append(torch.cat([param.detach().ravel() for param in params]))
    torch.testing.assert_close(*trained, rtol=1e-5, atol=1e-7, equal_nan=True)


def test_minimum_rms_depends_on_dtype() -> None:
    """Torch takes the first parameter's minimum for its whole group."""
    params = [
        torch.nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float32, torch.float64)
    ]
    opt = optim.Adafactor(params)
    for param in params:
        param.grad = torch.full_like(param, 1e-12)
    opt.step()
    moves = [1 - param.detach().double() for param in params]
    assert moves[0].max() < 1e-6 < 9e-3 < moves[1].min()


def reload(opt: Any) -> Any:
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    return opt


def restore_from_file(opt: Any, folder: Path) -> Any:
    params = params_of(torch.float32)
    with torch.no_grad():
        for param, source in zip(params, opt.param_groups[0]["params"], strict=True):
            param.copy_(source)
    target = optim.Adafactor(params, lr=0.5)
    checkpoint.save(folder / "state", optimizer=opt)
    checkpoint.restore(folder / "state", optimizer=target)
    return target


RESUMERS: dict[str, Callable[[Any, Path], Any]] = {
    "loaded": lambda opt, _: reload(opt),
    "copied": lambda opt, _: copy.deepcopy(opt),
    "pickled": lambda opt, _: pickle.loads(pickle.dumps(opt)),
    "file": restore_from_file,
}


@pytest.mark.parametrize("resume", RESUMERS)
def test_resumed_training_has_the_same_bits(resume: str, tmp_path: Path) -> None:
    opt = run_steps(optim.Adafactor(params_of(torch.float32)))
    straight = run_steps(optim.Adafactor(params_of(torch.float32)), 8)
    resumed = run_steps(RESUMERS[resume](opt, tmp_path), 3, 5)
    assert_same(tensors_of(resumed), tensors_of(straight))


def test_closure_and_hook() -> None:
    losses_by_module = []
    for module in (optim, torch.optim):
        (param,) = params = params_of(torch.float32, ((6, 5),))
        opt, calls = module.Adafactor(params, lr=0.1), []
        opt.register_step_post_hook(lambda *_, calls=calls: calls.append("post"))

        def closure(param: Tensor = param, opt: Any = opt) -> Tensor:
            opt.zero_grad()
            loss = param.square().sum()
            loss.backward()
            return loss

        losses = [opt.step(closure).item() for _ in range(4)]
        assert calls == ["post"] * 4
        losses_by_module.append(torch.tensor(losses))
    torch.testing.assert_close(*losses_by_module, rtol=1e-6, atol=0)


def test_groups_by_name_and_added_group() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    opt = optim.Mixed(optim.groups(model, rules={2: {"rule": "Adafactor", "d": 1.5}, 1: "AdamW"}))
    weights = [model[0].weight, model[2].weight]
    ref = torch.optim.Adafactor(copies := copy.deepcopy(weights), d=1.5)
    extra, ref_extra = params_of(torch.float32, ((4, 3),)), params_of(torch.float32, ((4, 3),))
    for step in range(4):
        if step == 2:
            opt.add_param_group(
                {
                    "params": [("extra", extra[0])],
                    "rule": "Adafactor",
                    "d": 1.5,
                    "eps": (1e-2, 1e-2),
                }
            )
            ref.add_param_group({"params": ref_extra, "eps": (1e-2, 1e-2)})
            copies, weights = [*copies, *ref_extra], [*weights, *extra]
        give([*model.parameters(), *extra], step)
        for param, ref_param in zip(weights, copies, strict=True):
            ref_param.grad = param.grad.clone()
        opt.step()
        ref.step()
    for param, ref_param in zip(weights, copies, strict=True):
        torch.testing.assert_close(param, ref_param, rtol=1e-5, atol=1e-7)


OTHER_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"clip_grad_norm": 0.5},
    {"clip_grad_value": 0.125},
    {"masters": True},
    {"state_dtype": torch.float32},
    {"ema_decay": 0.9},
    {"lookahead": 2},
    {"accumulate": 2},
    {"fused_unscale": True},
    {"in_backward": True},
)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [*zip(OTHER_OPTIONS, cycle((torch.float32, torch.bfloat16))), ({}, torch.bfloat16)],
    ids=str,
)
@pytest.mark.one_in(3)
def test_engines_agree_with_other_options(dtype: torch.dtype, options: dict[str, Any]) -> None:
    states, shapes = [], ((7,), (24, 16), (6, 8, 3, 3), (70, 1030))
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            params = params_of(dtype, shapes)
            opt = optim.Adafactor(params, lr=0.1, **options)
            for step in range(4):
                if "in_backward" in options:
                    sum((p.float() * (step + 1)).square().sum() for p in params).backward()
                else:
                    give(params, step)
                    opt.step()
        states.append(tensors_of(opt))
        counts = {state["step"].item() for state in opt.state.values()}
        assert counts == {2 if "accumulate" in options else 4}
    assert_same(*states)


def test_accumulation_equals_mean_gradient() -> None:
    params = params_of(torch.float32)
    opt = optim.Adafactor(params, accumulate=2)
    ref = torch.optim.Adafactor(ref_params := params_of(torch.float32))
    for step in range(6):
        give(params, step)
        for param, ref_param in zip(params, ref_params, strict=True):
            grad = param.grad.clone() / 2
            ref_param.grad = grad if step % 2 == 0 else ref_param.grad + grad
        opt.step()
        if step % 2:
            ref.step()
    assert (
        movement_of(params, ref_params).norm()
        <= BOUND * movement_of(ref_params, params_of(torch.float32)).norm()
    )


@pytest.mark.parametrize("step", [0, 2])
def test_overflow_skips_the_step(step: int) -> None:
    params = params_of(torch.float32)
    opt = run_steps(optim.Adafactor(params, fused_unscale=True), step)
    previous = copy.deepcopy(tensors_of(opt))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    give(params, step)
    params[3].grad[5, 5] = float("inf")
    scaler.step(opt)
    assert not opt.last_step.taken
    assert_same([p.detach() for p in params], previous[: len(params)])


@pytest.mark.parametrize("category", ["float16", "complex", "sparse"])
def test_unsupported_params_behave_as_in_torch(category: str) -> None:
    outcomes = []
    for module in (optim, torch.optim):
        dtype = {"float16": torch.float16, "complex": torch.complex64}.get(category, torch.float32)
        param = torch.ones(4, 3, dtype=dtype, requires_grad=True)
        param.grad = torch.full_like(param.detach(), 0.5)
        if category == "sparse":
            param.grad = param.grad.to_sparse()
        opt = module.Adafactor([param])
        try:
            opt.step()
            outcomes.append(param.detach())
        except RuntimeError as error:
            outcomes.append(str(error))
    assert type(outcomes[0]) is type(outcomes[1])
    if isinstance(outcomes[0], str):
        assert outcomes[0] == outcomes[1]
    else:
        assert_same(outcomes[:1], outcomes[1:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ema_decay": 0.9}, "Adafactor with ema_decay takes steps on"),
        ({"clip_grad_norm": 1.0}, "Adafactor with clip_grad_norm takes steps on"),
    ],
    ids=str,
)
def test_unsupported_params_with_options_raise(options: dict[str, Any], message: str) -> None:
    param = torch.ones(4, 3, dtype=torch.float16, requires_grad=True)
    param.grad = torch.ones_like(param.detach())
    with pytest.raises(NotImplementedError, match=message):
        optim.Adafactor([param], **options).step()
    assert_same([param.detach()], [torch.ones(4, 3, dtype=torch.float16)])


@pytest.mark.parametrize("eps", [3.0, (1e-3,), ("much", 1e-3), (1e-3, None), None])
def test_invalid_eps_changes_nothing(eps: Any) -> None:
    opt = run_steps(optim.Adafactor(params_of(torch.float32)), 2)
    state, previous = copy.deepcopy(opt.state_dict()), copy.deepcopy(tensors_of(opt))
    state["param_groups"][0]["eps"] = eps
    with pytest.raises(
        ValueError, match=r"eps must be two numbers, or None and a number.* group 0"
    ):
        opt.load_state_dict(state)
    opt.param_groups[0]["eps"] = eps
    with pytest.raises(TypeError, match="eps must be two numbers, or None and a number"):
        opt.step()
    assert_same(tensors_of(opt), previous)


def test_slot_of_other_shape_raises() -> None:
    opt = run_steps(optim.Adafactor([("up", params_of(torch.float32, ((6, 5),))[0])]), 1)
    (param,) = opt.param_groups[0]["params"]
    previous = param.detach().clone()
    opt.state[param]["row_var"] = torch.zeros(5, 1)
    with pytest.raises((InvalidArgumentError, LayoutError), match="row_var"):
        opt.step()
    assert_same([param.detach()], [previous])


def test_empty_param_does_not_move() -> None:
    """Torch divides by the number of elements, which is 0."""
    params = params_of(torch.float32, ((3, 0), (0,), (0, 2, 2), (4, 3)))
    ref_params = params_of(torch.float32, ((4, 3),))
    opt, ref = optim.Adafactor(params), optim.Adafactor(ref_params)
    for step in range(2):
        give(params, step)
        ref_params[0].grad = params[3].grad.clone()
        opt.step()
        ref.step()
    assert [len(opt.state[param]) for param in params[:3]] == [3, 2, 3]
    assert_same([params[3].detach()], [ref_params[0].detach()])
    with pytest.raises(ZeroDivisionError):
        run_steps(torch.optim.Adafactor(params_of(torch.float32, ((3, 0),))), 1)

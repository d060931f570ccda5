"""`optim.Adafactor` beside `torch.optim.Adafactor`: shapes, options, what is left to torch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
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
BOUND = 1e-5  # of the movement
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
    dice = torch.Generator().manual_seed(0)
    own = (torch.randn(shape, generator=dice, dtype=torch.float64) for shape in shapes)
    return [each.to(dtype).requires_grad_() for each in own]


def give(params: Any, step: int) -> None:
    dice = torch.Generator().manual_seed(100 + step)
    for param in params:
        grad = torch.randn(param.shape, generator=dice, dtype=torch.float64) * 10 ** (step % 3 - 1)
        param.grad = grad.to(param.dtype)


def moved(params: Any, start: Any) -> Tensor:
    pairs = zip(params, start, strict=True)
    return torch.cat([(p.detach().double() - s.detach().double()).ravel() for p, s in pairs])


def steps(made: Any, count: int = 5, first: int = 0) -> Any:
    for step in range(first, first + count):
        give([param for group in made.param_groups for param in group["params"]], step)
        made.step()
    return made


def flat(made: Any) -> list[Tensor]:
    """Parameters and state."""
    params = [param for group in made.param_groups for param in group["params"]]
    own = [value for param in params for value in made.state.get(param, {}).values()]
    return [each.detach() for each in (*params, *own)]


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        (options, dtype)
        for options in OPTIONS
        for dtype in (torch.float32, torch.float64)
        # Torch computes with a tensor of float32 in that.
        if not (isinstance(options.get("lr"), Tensor) and dtype == torch.float64)
    ],
    ids=str,
)
def test_each_parameter_moves_as_torchs(options: dict[str, Any], dtype: torch.dtype) -> None:
    both = []
    for module in (optim, torch.optim):
        params = params_of(dtype)
        both.append(steps(module.Adafactor(params, **copy.deepcopy(options))))
    start, bound = params_of(dtype), BOUND if dtype == torch.float32 else 1e-14
    for ours, theirs, first in zip(
        *(m.param_groups[0]["params"] for m in both), start, strict=True
    ):
        movement = moved([theirs], [first]).norm()
        unit = torch.finfo(dtype).eps * theirs.detach().abs().max()
        assert moved([ours], [theirs]).norm() <= bound * movement + unit, tuple(first.shape)
        own, wanted = both[0].state[ours], both[1].state[theirs]
        assert list(own) == list(wanted)
        for name, value in wanted.items():
            assert (own[name].shape, own[name].dtype) == (value.shape, value.dtype)
            torch.testing.assert_close(own[name], value, rtol=max(1e-12, bound), atol=0)


@pytest.mark.parametrize(
    "options",
    [{"lr": 0.5}, {"d": 0.5}, {"beta2_decay": -0.5}, {"eps": (1e-2, 0.1)}, {"weight_decay": 0.1}],
    ids=str,
)
def test_groups_have_their_own_options(options: dict[str, Any]) -> None:
    both = []
    for module in (optim, torch.optim):
        params, others = (params_of(torch.float32) for _ in range(2))
        groups: list[dict[str, Any]] = [{"params": params}, {"params": others, **options}]
        both.append(steps(module.Adafactor(groups, lr=0.3)))
    starts = params_of(torch.float32)
    for own, theirs in zip(*(made.param_groups for made in both), strict=True):
        for param, other, start in zip(own["params"], theirs["params"], starts, strict=True):
            movement = moved([other], [start]).norm()
            unit = torch.finfo(torch.float32).eps * other.detach().abs().max()
            assert moved([param], [other]).norm() <= BOUND * movement + unit, tuple(start.shape)


def test_bfloat16_is_rounded_once() -> None:
    """Torch rounds after each operation; ours is its float32, whose numbers are rounded."""
    params = params_of(torch.bfloat16)
    made = optim.Adafactor(params, eps=(1e-7, 1e-3))
    for step in range(4):
        wide = [param.detach().float().requires_grad_() for param in params]
        judge = torch.optim.Adafactor(wide, eps=(1e-7, 1e-3))
        for param, own in zip(wide, (made.state.get(param, {}) for param in params), strict=True):
            if own:
                judge.state[param] = {key: value.float().clone() for key, value in own.items()}
        give(params, step)
        for param, other in zip(params, wide, strict=True):
            other.grad = param.grad.float()
        made.step()
        judge.step()
        for ours, theirs in zip(params, wide, strict=True):
            half = torch.finfo(torch.bfloat16).eps / 2 * theirs.abs()
            assert ((ours.float() - theirs).abs() <= 1.01 * half + 1e-7).all()


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf"), 1e30, 1e-40, -0.0])
@pytest.mark.parametrize("shape", [(9,), (5, 9), (2, 3, 4)], ids=str)
def test_odd_gradients_spread_as_far_as_torchs(shape: Any, odd: float) -> None:
    both = []
    for module in (optim, torch.optim):
        (param,) = params = params_of(torch.float32, (shape,))
        made = module.Adafactor(params)
        for step in range(3):
            give(params, step)
            if step == 1:
                param.grad[(0,) * len(shape)] = odd
            made.step()
        both.append(param.detach())
    torch.testing.assert_close(*both, rtol=1e-5, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_odd_parameters_spread_as_far_as_torchs(odd: float) -> None:
    both = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32, ((9,), (5, 9)))
        with torch.no_grad():
            params[0][3] = params[1][2, 2] = odd
        steps(module.Adafactor(params), 2)
        both.append(torch.cat([param.detach().ravel() for param in params]))
    torch.testing.assert_close(*both, rtol=1e-5, atol=1e-7, equal_nan=True)


def test_the_least_root_is_that_of_each_dtype() -> None:
    """Torch takes that of the first parameter's for all of a group."""
    params = [
        torch.nn.Parameter(torch.ones(3, dtype=kind)) for kind in (torch.float32, torch.float64)
    ]
    made = optim.Adafactor(params)
    for param in params:
        param.grad = torch.full_like(param, 1e-12)
    made.step()
    moves = [1 - param.detach().double() for param in params]
    assert moves[0].max() < 1e-6 < 9e-3 < moves[1].min()


def make_far(made: Any) -> Any:
    made.load_state_dict(copy.deepcopy(made.state_dict()))
    return made


def from_file(made: Any, folder: Path) -> Any:
    params = params_of(torch.float32)
    with torch.no_grad():
        for param, other in zip(params, made.param_groups[0]["params"], strict=True):
            param.copy_(other)
    again = optim.Adafactor(params, lr=0.5)
    checkpoint.save(folder / "state", optimizer=made)
    checkpoint.restore(folder / "state", optimizer=again)
    return again


WAYS: dict[str, Callable[[Any, Path], Any]] = {
    "loaded": lambda made, _: make_far(made),
    "copied": lambda made, _: copy.deepcopy(made),
    "pickled": lambda made, _: pickle.loads(pickle.dumps(made)),
    "file": from_file,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_training_goes_on(way: str, tmp_path: Path) -> None:
    made = steps(optim.Adafactor(params_of(torch.float32)))
    straight = steps(optim.Adafactor(params_of(torch.float32)), 8)
    again = steps(WAYS[way](made, tmp_path), 3, 5)
    assert_same(flat(again), flat(straight))


def test_a_closure_and_a_hook_see_the_step() -> None:
    both = []
    for module in (optim, torch.optim):
        (param,) = params = params_of(torch.float32, ((6, 5),))
        made, seen = module.Adafactor(params, lr=0.1), []
        made.register_step_post_hook(lambda *_, seen=seen: seen.append("post"))

        def closure(param: Tensor = param, made: Any = made) -> Tensor:
            made.zero_grad()
            loss = param.square().sum()
            loss.backward()
            return loss

        losses = [made.step(closure).item() for _ in range(4)]
        assert seen == ["post"] * 4
        both.append(torch.tensor(losses))
    torch.testing.assert_close(*both, rtol=1e-6, atol=0)


def test_groups_are_added_and_chosen_by_name() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    made = optim.Mixed(optim.groups(model, rules={2: {"rule": "Adafactor", "d": 1.5}, 1: "AdamW"}))
    weights = [model[0].weight, model[2].weight]
    judge = torch.optim.Adafactor(copies := copy.deepcopy(weights), d=1.5)
    extra, other = params_of(torch.float32, ((4, 3),)), params_of(torch.float32, ((4, 3),))
    for step in range(4):
        if step == 2:
            made.add_param_group(
                {
                    "params": [("extra", extra[0])],
                    "rule": "Adafactor",
                    "d": 1.5,
                    "eps": (1e-2, 1e-2),
                }
            )
            judge.add_param_group({"params": other, "eps": (1e-2, 1e-2)})
            copies, weights = [*copies, *other], [*weights, *extra]
        give([*model.parameters(), *extra], step)
        for param, copied in zip(weights, copies, strict=True):
            copied.grad = param.grad.clone()
        made.step()
        judge.step()
    for param, copied in zip(weights, copies, strict=True):
        torch.testing.assert_close(param, copied, rtol=1e-5, atol=1e-7)


BESIDE: tuple[dict[str, Any], ...] = (
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


@pytest.mark.parametrize("options", BESIDE, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_engines_agree_under_every_option(dtype: torch.dtype, options: dict[str, Any]) -> None:
    both = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            params = params_of(dtype)
            made = optim.Adafactor(params, lr=0.1, **options)
            for step in range(4):
                if "in_backward" in options:
                    sum((p.float() * (step + 1)).square().sum() for p in params).backward()
                else:
                    give(params, step)
                    made.step()
        both.append(flat(made))
        counts = {own["step"].item() for own in made.state.values()}
        assert counts == {2 if "accumulate" in options else 4}
    assert_same(*both)


def test_accumulated_gradients_are_those_of_one_step() -> None:
    params = params_of(torch.float32)
    made = optim.Adafactor(params, accumulate=2)
    other = torch.optim.Adafactor(others := params_of(torch.float32))
    for step in range(6):
        give(params, step)
        for param, each in zip(params, others, strict=True):
            grad = param.grad.clone() / 2
            each.grad = grad if step % 2 == 0 else each.grad + grad
        made.step()
        if step % 2:
            other.step()
    assert moved(params, others).norm() <= BOUND * moved(others, params_of(torch.float32)).norm()


@pytest.mark.parametrize("step", [0, 2])
def test_a_scale_that_overflows_leaves_all_as_it_was(step: int) -> None:
    params = params_of(torch.float32)
    made = steps(optim.Adafactor(params, fused_unscale=True), step)
    before = copy.deepcopy(flat(made))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    give(params, step)
    params[3].grad[5, 5] = float("inf")
    scaler.step(made)
    assert not made.last_step.taken
    assert_same([p.detach() for p in params], before[: len(params)])


@pytest.mark.parametrize("kind", ["float16", "complex", "sparse", "meta"])
def test_what_torch_takes_or_refuses_is_torchs(kind: str) -> None:
    both = []
    for module in (optim, torch.optim):
        dtype = {"float16": torch.float16, "complex": torch.complex64}.get(kind, torch.float32)
        device = "meta" if kind == "meta" else "cpu"
        param = torch.ones(4, 3, dtype=dtype, device=device, requires_grad=True)
        param.grad = torch.full_like(param.detach(), 0.5)
        if kind == "sparse":
            param.grad = param.grad.to_sparse()
        made = module.Adafactor([param])
        try:
            made.step()
            both.append(param.detach())
        except RuntimeError as error:
            both.append(str(error))
    assert type(both[0]) is type(both[1])
    if isinstance(both[0], str):
        assert both[0] == both[1]
    else:
        assert_same(both[:1], both[1:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ema_decay": 0.9}, "Adafactor with ema_decay takes steps on"),
        ({"clip_grad_norm": 1.0}, "Adafactor with clip_grad_norm takes steps on"),
    ],
    ids=str,
)
def test_what_is_torchs_has_no_options(options: dict[str, Any], message: str) -> None:
    param = torch.ones(4, 3, dtype=torch.float16, requires_grad=True)
    param.grad = torch.ones_like(param.detach())
    with pytest.raises(NotImplementedError, match=message):
        optim.Adafactor([param], **options).step()
    assert_same([param.detach()], [torch.ones(4, 3, dtype=torch.float16)])


@pytest.mark.parametrize("eps", [3.0, (1e-3,), ("much", 1e-3), (1e-3, None), None])
def test_a_wrong_eps_changes_nothing(eps: Any) -> None:
    made = steps(optim.Adafactor(params_of(torch.float32)), 2)
    saved, before = copy.deepcopy(made.state_dict()), copy.deepcopy(flat(made))
    saved["param_groups"][0]["eps"] = eps
    with pytest.raises(
        ValueError, match=r"eps must be two numbers, or None and a number.* group 0"
    ):
        made.load_state_dict(saved)
    made.param_groups[0]["eps"] = eps
    with pytest.raises(TypeError, match="eps must be two numbers, or None and a number"):
        made.step()
    assert_same(flat(made), before)


def test_a_slot_of_another_shape_is_refused_by_name() -> None:
    made = steps(optim.Adafactor([("up", params_of(torch.float32, ((6, 5),))[0])]), 1)
    (param,) = made.param_groups[0]["params"]
    before = param.detach().clone()
    made.state[param]["row_var"] = torch.zeros(5, 1)
    with pytest.raises((InvalidArgumentError, LayoutError), match="row_var"):
        made.step()
    assert_same([param.detach()], [before])


def test_an_empty_parameter_stands_still() -> None:
    """Torch divides by the number of its elements, which is 0."""
    params = params_of(torch.float32, ((3, 0), (0,), (0, 2, 2), (4, 3)))
    alone = params_of(torch.float32, ((4, 3),))
    made, other = optim.Adafactor(params), optim.Adafactor(alone)
    for step in range(2):
        give(params, step)
        alone[0].grad = params[3].grad.clone()
        made.step()
        other.step()
    assert [len(made.state[param]) for param in params[:3]] == [3, 2, 3]
    assert_same([params[3].detach()], [alone[0].detach()])
    with pytest.raises(ZeroDivisionError):
        steps(torch.optim.Adafactor(params_of(torch.float32, ((3, 0),))), 1)

"""An optimizer of torch's kind and its twin, which looks carefully at each step."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from thalweg import optim

# Options, each with the calls of `step` for one that is taken.
OPTIONS: list[tuple[dict[str, Any], int]] = [
    ({}, 1),
    ({"ema_decay": 0.9}, 1),
    ({"lookahead": 3}, 1),
    ({"clip_grad_norm": 0.5}, 1),
    ({"clip_grad_value": 0.3}, 1),
    ({"clip_grad_value": 0.3, "clip_grad_norm": 0.5}, 1),
    ({"clip_grad_norm": 0.5, "ema_decay": 0.9}, 1),
    ({"masters": True}, 1),
    ({"masters": True, "clip_grad_norm": 0.5}, 1),
    ({"state_dtype": torch.bfloat16}, 1),
    ({"accumulate": 2}, 2),
    ({"accumulate": 2, "wide_sums": True}, 2),
    ({"accumulate": 3, "clip_grad_norm": 0.5}, 3),
    ({"accumulate": 2, "masters": True}, 2),
    ({"fused_unscale": True}, 1),
    ({"fused_unscale": True, "clip_grad_norm": 0.5, "clip_grad_value": 0.4}, 1),
]
SHAPES = [(3,), (4, 5), (), (2, 3, 4), (70,), (0, 2)]


def params(count: int = 4, shape: tuple[int, ...] = (3, 2)) -> list[Parameter]:
    torch.manual_seed(0)
    return [Parameter(torch.randn(shape)) for _ in range(count)]


def set_grads(
    params: list[Parameter], seed: int, skipped: set[int] | frozenset[int] = frozenset()
) -> None:
    dice = torch.Generator().manual_seed(seed)
    for place, param in enumerate(params):
        grad = torch.randn(param.shape, generator=dice).to(param.dtype)
        param.grad = None if place in skipped else grad


def norm_of(params: list[Parameter]) -> float:
    return torch.nn.utils.get_total_norm([x.grad for x in params if x.grad is not None]).item()


def count_replays(opt: Any) -> int:
    return 0 if opt.step_cache.replay is None else opt.step_cache.replay.taken


# What happens between two steps


def _data(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    param.data = param.data.clone()


def _no_gradient(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    param.grad = None


def _rate(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    for group in opt.param_groups:
        group["lr"] = dice.random() / 10


def _rate_of_a_tensor(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    opt.param_groups[0]["lr"] = torch.tensor(0.01)


def _decay(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    if "weight_decay" in opt.param_groups[0]:
        opt.param_groups[0]["weight_decay"] = 0.01


def _other_numbers(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    """Change every number of a group that the rule reads, with other classes and signs, too."""
    group = dice.choice(opt.param_groups)
    kind = dice.choice([float, float, np.float64, np.float32, int, torch.tensor])
    for key, value in group.items():
        if isinstance(value, bool) or key in ("initial_lr", "params"):
            continue
        if isinstance(value, float):
            group[key] = kind(value * dice.choice([0.5, 0.9, 1.0, 0.0, -1.0]))
        elif isinstance(value, tuple) and all(isinstance(number, float) for number in value):
            group[key] = dice.choice([tuple, list])(number * 0.99 for number in value)


def _momentum_scheduled(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    for group in opt.param_groups:
        for key in ("momentum", "weight_decay", "alpha", "eps"):
            if isinstance(group.get(key), float):
                group[key] *= 0.97
        if isinstance(group.get("betas"), tuple):
            group["betas"] = (group["betas"][0] * 0.97, *group["betas"][1:])


def _slot_replaced(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    for name, tensor in (opt.state.get(param) or {}).items():
        if isinstance(tensor, Tensor):
            opt.state[param][name] = tensor.clone()


def _slot_written(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    for tensor in (opt.state.get(param) or {}).values():
        if isinstance(tensor, Tensor):
            tensor.mul_(0.5 if tensor.is_floating_point() else 2)


def _state_lost(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    opt.state.pop(param, None)


def _state_loaded(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))


def _swapped(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    try:
        torch.utils.swap_tensors(param, Parameter(torch.full_like(param, 0.25)))
    except RuntimeError:
        return


def _strided(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    if param.grad is not None:
        param.grad = torch.stack([param.grad, param.grad], -1)[..., 0]


def _shared(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    if param.grad is not None:
        param.grad = param.data.view_as(param)


def _rows(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    if param.grad is not None and param.dim():
        param.grad = param.grad.to_sparse()


def _frozen(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    param.requires_grad_(False)


def _thawed(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    param.requires_grad_(True)


def _written(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    param.data.add_(1)


def _of_a_class(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    param.__class__ = type("Own", (Parameter,), {})


def _constrained(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    param.constraint = lambda value: value.clamp(-0.5, 0.5)


def _scaled(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    opt.found_inf = torch.tensor(float(dice.random() < 0.5))
    opt.grad_scale = torch.tensor(2.0)


def _unscaled(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    for name in ("found_inf", "grad_scale"):
        vars(opt).pop(name, None)


def _heard(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    opt.register_step_post_hook(lambda *_: None)


def _group_added(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    if len(params) < 8:
        params.append(Parameter(torch.ones(5)))
        rule = {"rule": "SGD"} if isinstance(opt, optim.Mixed) else {}
        opt.add_param_group({"params": [params[-1]], **rule})


def _rate_written(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    if isinstance(rate := opt.param_groups[0]["lr"], Tensor):
        rate.mul_(0.5)


def _sum_replaced(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    own_sum = opt.state.get(param, {}).get("gradient_sum")
    if isinstance(own_sum, Tensor):
        opt.state[param]["gradient_sum"] = own_sum.clone()


def _sum_lost(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    opt.state.get(param, {}).pop("gradient_sum", None)


def _sum_shared(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    if "gradient_sum" in opt.state.get(param, {}):
        opt.state[param]["gradient_sum"] = param.data.view_as(param)


def _options_reordered(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    for group in opt.param_groups:
        group["lr"] = group.pop("lr")


def _huge(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    for any_param in params:
        if any_param.grad is not None:
            any_param.grad.mul_(dice.choice([1e30, 1e-30, float("nan"), float("inf")]))


def _group_removed(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    if len(opt.param_groups) > 1:
        for removed in opt.param_groups.pop()["params"]:
            opt.state.pop(removed, None)  # which torch's `state_dict` has no place for


def _numbers_apart(opt: Any, params: Any, param: Any, dice: random.Random) -> None:
    """Write unequal step counts, then try a step with an invalid rate, which must raise."""
    for param_state in opt.state.values():
        if isinstance(number := param_state.get("step"), Tensor):
            number.fill_(dice.choice([5, 20]))
    group = opt.param_groups[0]
    rate, group["lr"] = group["lr"], "none"
    with contextlib.suppress(TypeError, ValueError):
        opt.step()
    group["lr"] = rate


CHANGES = [
    _data, _no_gradient, _rate, _rate_of_a_tensor, _decay, _slot_replaced, _slot_written,
    _state_lost, _state_loaded, _swapped, _strided, _shared, _rows, _frozen, _thawed, _written,
    _of_a_class, _constrained, _scaled, _unscaled, _heard, _group_added, _rate_written,
    _sum_replaced, _sum_lost, _sum_shared, _options_reordered, _huge, _group_removed,
    _numbers_apart,
]  # fmt: skip
# Of groups whose rules keep no powers of their betas.
WITH_NUMBERS = [*CHANGES, _other_numbers, _momentum_scheduled]


def are_same(first: Any, second: Any) -> bool:
    if not isinstance(first, Tensor):
        return first == second
    first, second = (side.to_dense() if side.is_sparse else side for side in (first, second))
    equal = torch.equal(first.detach().nan_to_num(), second.detach().nan_to_num())
    return first.dtype == second.dtype and first.shape == second.shape and equal


def snapshot(opt: Any, params: list[Parameter]) -> list[tuple[str, Any]]:
    named: list[tuple[str, Any]] = [(f"parameter {k}", param) for k, param in enumerate(params)]
    for k, param in enumerate(params):
        named += [(f"{name} of {k}", x) for name, x in (opt.state.get(param) or {}).items()]
    return [*named, ("what the step says", repr(opt.last_step))]


def look_carefully(opt: Any) -> None:
    """Forget the plans of an optimizer, so that its next step checks everything."""
    opt.step_cache.forget_replay()
    opt.step_cache.changes.needs_plan = False


def random_set(count: int, dice: random.Random) -> set[int]:
    """Return positions of parameters without a gradient: none, or a random set."""
    share = dice.choice([0.0, 0.2, 0.5, 0.9])
    return {place for place in range(count) if dice.random() < share}


def diff(
    make: Callable[..., Any],
    seed: int,
    steps: int = 30,
    has_sets: bool = False,
) -> str:
    """Return what differs between an optimizer and its twin, or "".

    Args:
        make: Makes an optimizer and its parameters of a seed.
        seed: The seed of gradients and changes.
        steps: How many steps are taken.
        has_sets: Whether random sets of parameters have gradients.
    """
    pair = [make(seed), make(seed)]
    for step in range(steps):
        title = f"{seed}/{step}"
        choice = random.Random(title)
        changes = WITH_NUMBERS if has_sets else CHANGES
        change = choice.choice(changes) if choice.random() < 0.6 else None
        errors: list[str] = []
        for is_twin, (opt, params) in enumerate(pair):
            dice = random.Random(title)
            skipped = {0} if seed % 3 == 0 else set[int]()
            if has_sets:
                skipped |= random_set(len(params), random.Random(title))
            set_grads(params, seed * 1000 + step, skipped)
            if change is not None:
                change(opt, params, dice.choice(params), dice)
            if is_twin:
                look_carefully(opt)
            try:
                opt.step()
                errors.append("")
            except Exception as error:
                errors.append(type(error).__name__)
        label = f"{title}, after {change.__name__ if change else 'nothing'}"
        if errors[0] != errors[1]:
            return f"{label}: {errors}"
        for (key, actual), (name, expected) in zip(
            *(snapshot(*twin) for twin in pair), strict=True
        ):
            if key != name or not are_same(actual, expected):
                return f"{label}: {key} and {name}: {actual} and {expected}"
            # Slots of one plan may share a block, and its counter of writes.
            if name.startswith("step ") or (has_sets and not name.startswith("parameter")):
                continue
            if isinstance(actual, Tensor) and actual._version != expected._version:
                return f"{label}: versions of {name} are {actual._version} and {expected._version}"
    return ""

"""MARS of `thalweg.optim`: one-dimensional parameters, groups and errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from modern_inputs import gradients_of, params_of
from rulebook import assert_same
from thalweg import optim
from thalweg.errors import InvalidArgumentError, RuleError

STEPS = 5


def train(opt: Any, params: Any, steps: range = range(STEPS)) -> list[torch.Tensor]:
    for step in steps:
        for param, grad in zip(params, gradients_of(step, torch.float32), strict=True):
            param.grad = grad
        opt.step()
    return [param.detach() for param in params]


def distance(actual: torch.Tensor, expected: torch.Tensor, start: torch.Tensor) -> float:
    return float((actual - expected).norm() / (expected - start.detach()).norm())


@pytest.mark.parametrize("kind", ["adamw", "lion"])
def test_mars_vectors_take_adamw_steps(kind: str) -> None:
    """Vectors have separate betas, rate and decay; matrices do not."""
    params, ref_params = params_of(torch.float32), params_of(torch.float32)
    opt = optim.MARS(params, lr=0.02, betas_1d=(0.8, 0.9), lr_1d_factor=0.5, weight_decay=0.1,
                      mars_type=kind)  # fmt: skip
    adamw = optim.AdamW(ref_params, lr=0.01, betas=(0.8, 0.9), weight_decay=0.1)
    pairs = zip(train(opt, params), train(adamw, ref_params), params_of(torch.float32), strict=True)
    assert [distance(*pair) < 1e-5 for pair in pairs] == [True, True] + [False] * 4
    flags = [float(opt.state[param]["is_vector"]) for param in params]
    assert flags == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_mars_is_one_rule_of_mixed() -> None:
    params, ref_params = params_of(torch.float32), params_of(torch.float32)
    kwargs = {"lr": 0.01, "betas": (0.8, 0.9), "mars_type": "lion"}
    groups = [
        {"params": params[::2], "rule": "MARS", **kwargs},
        {"params": params[1::2], "rule": "AdamW"},
    ]
    mixed, reference = optim.Mixed(groups), optim.MARS(ref_params, **kwargs)
    assert mixed.param_groups[0]["betas_1d"] == (0.8, 0.9)
    train(mixed, params)
    train(reference, ref_params)
    assert_same([x.detach() for x in params[::2]], [x.detach() for x in ref_params[::2]])


def test_group_sets_mars_type() -> None:
    params, ref_params = params_of(torch.float32), params_of(torch.float32)
    opt = optim.MARS([{"params": params[:3]}, {"params": params[3:], "mars_type": "lion"}])
    updates = train(opt, params)
    twins = [optim.MARS(ref_params[:3]), optim.MARS(ref_params[3:], mars_type="lion")]
    for twin in twins:
        train(twin, ref_params)
    assert_same(updates, [param.detach() for param in ref_params])
    copies = params_of(torch.float32)
    copied_opt = optim.MARS([{"params": copies[:3]}, {"params": copies[3:], "mars_type": "lion"}])
    for param, value in zip(copies, updates, strict=True):
        param.data.copy_(value)
    copied_opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    next_steps = range(STEPS, STEPS + 3)
    assert_same(train(opt, params, next_steps), train(copied_opt, copies, next_steps))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"mars_type": "adam"}, "mars_type must be 'adamw' or 'lion', not 'adam' in group 0"),
        ({"mars_type": ["lion"]}, r"mars_type must be 'adamw' or 'lion', not \['lion'\]"),
        ({"caution": True}, "caution=True is not offered: what it measures follows from a norm"),
        ({"betas_1d": (0.9, 1.0)}, "Invalid betas_1d value"),
    ],
)
def test_invalid_mars_options_raise(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optim.MARS(params_of(torch.float32), **kwargs)
    opt = optim.MARS(params_of(torch.float32))
    state_dict = opt.state_dict()
    state_dict["param_groups"][0].update(kwargs)
    if "betas_1d" not in kwargs:
        with pytest.raises(ValueError, match=message.partition(" in group")[0]):
            opt.load_state_dict(state_dict)


@pytest.mark.parametrize("option", ["row_floor", "cautious_decay"])
def test_unsupported_mars_wrappers_raise(option: str) -> None:
    with pytest.raises((InvalidArgumentError, RuleError), match="MARS"):
        optim.MARS([x for x in params_of(torch.float32) if x.dim() == 2], **{option: True})

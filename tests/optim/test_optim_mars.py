"""MARS of `thalweg.optim`: what its parameters of one dimension do, and what is refused."""

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


def trained(made: Any, params: Any, steps: range = range(STEPS)) -> list[torch.Tensor]:
    for step in steps:
        for param, grad in zip(params, gradients_of(step, torch.float32), strict=True):
            param.grad = grad
        made.step()
    return [param.detach() for param in params]


def far(one: torch.Tensor, other: torch.Tensor, start: torch.Tensor) -> float:
    return float((one - other).norm() / (other - start.detach()).norm())


@pytest.mark.parametrize("kind", ["adamw", "lion"])
def test_vectors_take_steps_of_adamw(kind: str) -> None:
    """With betas, rate and decay of their own; matrices do not."""
    params, others = params_of(torch.float32), params_of(torch.float32)
    made = optim.MARS(params, lr=0.02, betas_1d=(0.8, 0.9), lr_1d_factor=0.5, weight_decay=0.1,
                      mars_type=kind)  # fmt: skip
    adamw = optim.AdamW(others, lr=0.01, betas=(0.8, 0.9), weight_decay=0.1)
    pairs = zip(
        trained(made, params), trained(adamw, others), params_of(torch.float32), strict=True
    )
    assert [far(*each) < 1e-5 for each in pairs] == [True, True] + [False] * 4
    flags = [float(made.state[param]["is_vector"]) for param in params]
    assert flags == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_it_is_one_of_several_rules() -> None:
    params, others = params_of(torch.float32), params_of(torch.float32)
    given = {"lr": 0.01, "betas": (0.8, 0.9), "mars_type": "lion"}
    groups = [
        {"params": params[::2], "rule": "MARS", **given},
        {"params": params[1::2], "rule": "AdamW"},
    ]
    mixed, alone = optim.Mixed(groups), optim.MARS(others, **given)
    assert mixed.param_groups[0]["betas_1d"] == (0.8, 0.9)
    trained(mixed, params)
    trained(alone, others)
    assert_same([x.detach() for x in params[::2]], [x.detach() for x in others[::2]])


def test_a_group_chooses_its_type() -> None:
    params, others = params_of(torch.float32), params_of(torch.float32)
    made = optim.MARS([{"params": params[:3]}, {"params": params[3:], "mars_type": "lion"}])
    own = trained(made, params)
    twins = [optim.MARS(others[:3]), optim.MARS(others[3:], mars_type="lion")]
    for each in twins:
        trained(each, others)
    assert_same(own, [param.detach() for param in others])
    again = params_of(torch.float32)
    other = optim.MARS([{"params": again[:3]}, {"params": again[3:], "mars_type": "lion"}])
    for param, value in zip(again, own, strict=True):
        param.data.copy_(value)
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    more = range(STEPS, STEPS + 3)
    assert_same(trained(made, params, more), trained(other, again, more))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mars_type": "adam"}, "mars_type must be 'adamw' or 'lion', not 'adam' in group 0"),
        ({"mars_type": ["lion"]}, r"mars_type must be 'adamw' or 'lion', not \['lion'\]"),
        ({"caution": True}, "caution=True is not offered: what it measures follows from a norm"),
        ({"betas_1d": (0.9, 1.0)}, "Invalid betas_1d value"),
    ],
)
def test_what_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        optim.MARS(params_of(torch.float32), **given)
    made = optim.MARS(params_of(torch.float32))
    saved = made.state_dict()
    saved["param_groups"][0].update(given)
    if "betas_1d" not in given:
        with pytest.raises(ValueError, match=said.partition(" in group")[0]):
            made.load_state_dict(saved)


@pytest.mark.parametrize("option", ["row_floor", "cautious_decay"])
def test_wrappers_that_it_cannot_have(option: str) -> None:
    with pytest.raises((InvalidArgumentError, RuleError), match="MARS"):
        optim.MARS([x for x in params_of(torch.float32) if x.dim() == 2], **{option: True})

"""Gradients of several passes in one step: the sum, freed gradients, files in the middle."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from rulebook import assert_same
from thalweg import optim
from thalweg.optim import tensorflow
from torch_inputs import ROWS, give, params_of

MAKERS: dict[str, Any] = {
    "Adam": lambda p, **o: optim.Adam(p, lr=0.1, **o),
    "momentum": lambda p, **o: optim.SGD(p, lr=0.1, momentum=0.9, **o),
    "LazyAdam": lambda p, **o: tensorflow.LazyAdam(p, lr=0.1, **o),
}


def values(made: Any) -> list[torch.Tensor]:
    return [param.detach() for param in made.param_groups[0]["params"]]


def summed(made: Any, steps: int, passes: int, sparse: bool = False) -> Any:
    """Steps with sums of gradients, as torch accumulates them in `grad`."""
    params = made.param_groups[0]["params"]
    for step in range(steps):
        totals = [None] * len(params)
        for k in range(passes):
            give(params, step * passes + k, sparse)
            totals = [
                p.grad if total is None else total + p.grad
                for p, total in zip(params, totals, strict=True)
            ]
        for param, total in zip(params, totals, strict=True):
            param.grad = total
        made.step()
    return made


def folded(made: Any, calls: int, first: int = 0, sparse: bool = False) -> Any:
    params = made.param_groups[0]["params"]
    for call in range(first, first + calls):
        give(params, call, sparse)
        made.step()
        assert [param.grad for param in params] == [None] * len(params)
    return made


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 1.0}], ids=str)
@pytest.mark.parametrize(
    ("name", "sparse"),
    [("Adam", False), ("momentum", False), ("LazyAdam", False), ("LazyAdam", True)],
)
def test_a_step_takes_the_sum(name: str, sparse: bool, options: dict[str, Any]) -> None:
    made = MAKERS[name](params_of(torch.float32, ROWS), accumulate=3, **options)
    folded(made, 6, sparse=sparse)
    other = summed(MAKERS[name](params_of(torch.float32, ROWS), **options), 2, 3, sparse)
    assert_same(values(made), values(other))
    assert all("gradient_sum" not in own for own in made.state.values())


def test_steps_tell_which_were_taken() -> None:
    made = optim.Adam(params_of(torch.float32), accumulate=2)
    told = []
    for call in range(4):
        folded(made, 1, call)
        assert made.last_step is not None
        told.append((made.last_step.taken, made.last_step.reason, made.last_step.count))
    waiting = "1 of 2 gradients are summed up"
    assert told == [(False, waiting, 0), (True, "", 1), (False, waiting, 1), (True, "", 2)]


@pytest.mark.parametrize("name", MAKERS)
def test_sums_are_saved(name: str) -> None:
    made = folded(MAKERS[name](params_of(torch.float32, ROWS), accumulate=3), 5)
    params = [value.clone().requires_grad_() for value in values(made)]
    other = MAKERS[name](params, accumulate=3)
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    for each in (made, other):
        folded(each, 4, 5)
    assert_same(values(other), values(made))


def test_sums_may_be_wide() -> None:
    made = optim.SGD([torch.zeros(2, dtype=torch.bfloat16).requires_grad_()], lr=1.0,
                     accumulate=300, wide_sums=True)  # fmt: skip
    (param,) = made.param_groups[0]["params"]
    for _ in range(300):
        param.grad = torch.ones_like(param)
        made.step()
    assert param.tolist() == [-300.0, -300.0]  # a sum of 16 bits ends at 256


def test_a_pass_that_is_not_finite_is_left_out() -> None:
    made = optim.SGD([torch.zeros(2, requires_grad=True)], lr=1.0, accumulate=2, fused_unscale=True)
    (param,) = made.param_groups[0]["params"]
    for scale, value in ((2.0, 1.0), (4.0, float("inf")), (4.0, 1.0)):
        param.grad = torch.full((2,), scale * value)
        made.grad_scale = torch.tensor(scale)
        made.found_inf = torch.tensor(float(value == float("inf")))
        made.step()
    assert param.tolist() == [-2.0, -2.0]


def test_a_step_that_fails_keeps_the_sums() -> None:
    made = folded(optim.Adam(params_of(torch.float32), accumulate=2), 1)
    give(made.param_groups[0]["params"], 1)
    rate, made.param_groups[0]["lr"] = made.param_groups[0]["lr"], "much"
    with pytest.raises(TypeError, match="lr must be a number"):
        made.step()
    made.param_groups[0]["lr"] = rate
    made.step()
    other = summed(optim.Adam(params_of(torch.float32)), 1, 2)
    assert_same(values(made), values(other))


def test_a_count_is_whole() -> None:
    with pytest.raises(ValueError, match="accumulate must be a whole number from 1 on, not 0"):
        optim.Adam(params_of(torch.float32), accumulate=0)

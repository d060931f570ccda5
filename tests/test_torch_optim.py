"""The state of `torch.optim`, taken over and handed back."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor

from files import through_a_file
from thalweg import NumericsWarning, Variable
from thalweg.checkpoint import from_torch, to_torch
from torch_counterparts import CASES, Case, our_step, parameters, torch_step

BOUNDS = {torch.float64: 1.0, torch.float32: 2e-6 / 1e-13}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_dtype = pytest.mark.parametrize("dtype", BOUNDS, ids=["float64", "float32"])


def expected(says: str) -> Any:
    return pytest.warns(NumericsWarning, match=says) if says else contextlib.nullcontext()


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference of elements, relative to the largest magnitude."""
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    size = float(other.double().abs().max()) or 1.0
    return float((one.double() - other.double()).abs().max()) / size


def trained(case: Case, dtype: torch.dtype, steps: int = 3) -> Any:
    own = parameters(dtype)
    optimizer = case.torch(list(own.values()))
    for number in range(steps):
        torch_step(optimizer, number)
    return optimizer, own


def taken_over(case: Case, dtype: torch.dtype) -> tuple[Any, list[Any], Any, list[Any]]:
    theirs, own = trained(case, dtype)
    ours, variables = case.ours(), [Variable(own[name].detach(), name) for name in own]
    with expected(case.says):
        from_torch(through_a_file(theirs.state_dict()), into=ours, variables=variables)
    return theirs, list(own.values()), ours, variables


@every_dtype
@every_case
def test_five_steps_after_both_are_at_the_same_place(case: Case, dtype: torch.dtype) -> None:
    theirs, params, ours, variables = taken_over(case, dtype)
    for number in range(3, 8):
        torch_step(theirs, number), our_step(ours, variables, number)
    bound = case.bound * BOUNDS[dtype] if dtype == torch.float64 else 2e-6
    for param, var in zip(params, variables, strict=True):
        assert apart(var.detach(), param.detach()) < bound


@every_dtype
@every_case
def test_torch_goes_on_where_it_was_taken_over(case: Case, dtype: torch.dtype) -> None:
    theirs, params, ours, variables = taken_over(case, dtype)
    with expected(case.says):
        state = through_a_file(to_torch(ours, variables, step=3))
    wanted = theirs.state_dict()
    assert state["state"].keys() == wanted["state"].keys()
    for key, own in wanted["state"].items():
        found = state["state"][key]
        assert found.keys() == {name for name, value in own.items() if value is not None}
        for name, value in found.items():
            assert apart(value, own[name]) <= torch.finfo(dtype).eps, name
    again = case.torch([torch.nn.Parameter(param.detach().clone()) for param in params])
    again.load_state_dict(state)
    for number in range(3, 8):
        torch_step(theirs, number), torch_step(again, number)
    (group,) = again.param_groups
    for param, other in zip(params, group["params"], strict=True):
        assert apart(other.detach(), param.detach()) < 1e-6


@every_case
def test_a_group_has_all_that_torch_has_in_one(case: Case) -> None:
    theirs, _, ours, variables = taken_over(case, torch.float64)
    with expected(case.says):
        (group,) = to_torch(ours, variables, step=3)["param_groups"]
    (wanted,) = theirs.state_dict()["param_groups"]
    wanted |= {"param_names": ["w", "b"]}
    different = {key for key in wanted.keys() | group.keys() if wanted.get(key) != group.get(key)}
    # What is called tiny is rounded to float32, and where an accumulator began is no longer known.
    assert different <= {"eps", "initial_accumulator_value"}
    assert abs(group.get("eps", 0) - wanted.get("eps", 0)) < 1e-36

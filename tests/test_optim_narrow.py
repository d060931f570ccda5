"""Parameters of 16 bits: masters in float32, states of a dtype by choice, files without loss."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

from rulebook import assert_same
from thalweg import optim
from thalweg.errors import CheckpointWarning
from thalweg.optim import tensorflow
from torch_inputs import ROWS, give

MAKERS: dict[str, Any] = {
    "Adam": lambda p, **o: optim.Adam(p, lr=0.1, **o),
    "momentum": lambda p, **o: optim.SGD(p, lr=0.1, momentum=0.9, **o),
    "tensorflow": lambda p, **o: tensorflow.Adam(p, lr=0.1, **o),
}


def mixed() -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    kinds = (torch.bfloat16, torch.float32, torch.float16)
    return [
        torch.randn(shape, generator=made).to(kind).requires_grad_()
        for shape, kind in zip((*ROWS, (3,)), kinds, strict=True)
    ]


def wide(params: list[torch.Tensor]) -> list[torch.Tensor]:
    return [param.detach().float().clone().requires_grad_() for param in params]


def steps(made: Any, count: int, first: int = 0, sparse: bool = False) -> Any:
    params = made.param_groups[0]["params"]
    for step in range(first, first + count):
        give(params, step, sparse)
        made.step()
    return made


def both(name: str, count: int, sparse: bool = False, **options: Any) -> tuple[Any, Any]:
    """An optimizer with masters, and one of float32 parameters that gets the same gradients."""
    narrow = MAKERS[name](mixed()[: 2 + (not sparse)], masters=True, **options)
    params = narrow.param_groups[0]["params"]
    other = MAKERS[name](wide(params), **options)
    for step in range(count):
        give(params, step, sparse)
        for param, copied in zip(params, other.param_groups[0]["params"], strict=True):
            copied.grad = param.grad.float()
        narrow.step()
        other.step()
    return narrow, other


def assert_followed(narrow: Any, other: Any) -> None:
    for param, copied in zip(*(o.param_groups[0]["params"] for o in (narrow, other)), strict=True):
        own, theirs = narrow.state[param], dict(other.state[copied])
        if param.dtype != torch.float32:
            theirs["master"] = copied.detach()
            assert_same([param.detach()], [copied.detach().to(param.dtype)])
        assert list(own) == list(theirs)
        floats = [key for key in own if key != "step"]
        assert_same([own[key] for key in floats], [theirs[key] for key in floats])


@pytest.mark.parametrize("name", MAKERS)
def test_steps_are_those_of_the_masters(name: str) -> None:
    assert_followed(*both(name, 4))


def test_masters_beside_clipping_and_averages() -> None:
    assert_followed(*both("Adam", 4, clip_grad_norm=1.0, ema_decay=0.9))


def test_rows_of_masters() -> None:
    narrow, other = both("tensorflow", 3, sparse=True)
    assert_followed(narrow, other)


def test_what_others_write_to_a_parameter_counts() -> None:
    narrow, other = both("Adam", 2)
    param, copied = (each.param_groups[0]["params"][0] for each in (narrow, other))
    with torch.no_grad():
        param[0, 0] = 3.0
        copied[0, 0] = 3.0
    for step in range(2, 4):
        give(narrow.param_groups[0]["params"], step)
        for one, two in zip(*(e.param_groups[0]["params"] for e in (narrow, other)), strict=True):
            two.grad = one.grad.float()
        narrow.step()
        other.step()
    assert_followed(narrow, other)


@pytest.mark.parametrize("name", MAKERS)
def test_masters_are_saved(name: str) -> None:
    made = steps(MAKERS[name](mixed(), masters=True), 3)
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    params = [p.detach().clone().requires_grad_() for p in made.param_groups[0]["params"]]
    loaded = MAKERS[name](params, masters=True)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for resumed in (loaded, copy.deepcopy(made), made):
        steps(resumed, 3, 3)
    for other in (loaded, copy.deepcopy(made)):
        assert_same(
            [p.detach() for p in other.param_groups[0]["params"]],
            [p.detach() for p in made.param_groups[0]["params"]],
        )
    plain = steps(MAKERS[name](mixed()), 1)
    with pytest.warns(CheckpointWarning, match="has no 'master', which begins at the parameters"):
        loaded.load_state_dict(plain.state_dict())


def test_masters_of_a_rule_without_slots_are_saved() -> None:
    made = steps(optim.SGD(mixed(), lr=0.1, masters=True), 3)
    params = [p.detach().clone().requires_grad_() for p in made.param_groups[0]["params"]]
    assert [list(made.state[p]) for p in made.state] == [["master"], ["master"]]
    loaded = optim.SGD(params, lr=0.1, masters=True)
    loaded.load_state_dict(copy.deepcopy(made.state_dict()))
    for resumed in (loaded, made):
        steps(resumed, 3, 3)
    assert_same([p.detach() for p in params], [p.detach() for p in made.param_groups[0]["params"]])


@pytest.mark.parametrize("name", MAKERS)
def test_states_of_a_dtype_by_choice(name: str) -> None:
    made = steps(MAKERS[name](mixed(), state_dtype=torch.bfloat16), 2)
    kinds = {v.dtype for own in made.state.values() for k, v in own.items() if k != "step"}
    assert kinds == {torch.bfloat16}
    params = [p.detach().clone().requires_grad_() for p in made.param_groups[0]["params"]]
    other = MAKERS[name](params, state_dtype=torch.bfloat16)
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    for each in (made, other):
        steps(each, 2, 2)
    assert_same([p.detach() for p in params], [p.detach() for p in made.param_groups[0]["params"]])
    with pytest.raises(TypeError, match=r"state_dtype must be .* not torch.int8"):
        MAKERS[name](mixed(), state_dtype=torch.int8)

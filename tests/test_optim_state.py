"""State of `thalweg.optim` is torch's, key for key: moved to and fro, copied, and in files."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

from rulebook import assert_same
from thalweg import optim
from torch_inputs import CLASSES, INPUTS, ROWS, SHAPES, Input, give, params_of

FIRST = {case.name: case for case in reversed(INPUTS)}
WITH = [
    *(case for name, case in FIRST.items()),
    Input("SGD", {"momentum": 0.9, "nesterov": True}, "nesterov"),
    Input("Adam", {"amsgrad": True}, "amsgrad"),
    Input("RMSprop", {"momentum": 0.9, "centered": True}, "all"),
    Input("ASGD", {"t0": 2}, "averaging"),
]
by_case = pytest.mark.parametrize("case", WITH, ids=str)


def trained(case: Input, module: Any, first: int = 0, steps: int = 3, given: Any = None) -> Any:
    """An optimizer after some steps, or another one after further steps."""
    sparse = case.name == "SparseAdam"
    optimizer = given
    if given is None:
        optimizer = case.make(module, params_of(torch.float32, ROWS if sparse else SHAPES))
    for step in range(first, first + steps):
        give(optimizer.param_groups[0]["params"], step, sparse)
        optimizer.step()
    return optimizer


def moved(optimizer: Any, module: Any, case: Input) -> Any:
    """A new optimizer, over copies of the parameters, that was given a copy of the state."""
    params = [p.detach().clone().requires_grad_() for p in optimizer.param_groups[0]["params"]]
    made = case.make(module, params)
    made.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return made


def tensors(optimizer: Any) -> list[torch.Tensor]:
    """Parameters and state, in order."""
    params = optimizer.param_groups[0]["params"]
    found = [param.detach() for param in params]
    for param in params:
        for value in optimizer.state.get(param, {}).values():
            found.append(torch.as_tensor(value, dtype=torch.float32))
    return found


def assert_alike(one: Any, other: Any) -> None:
    a, b = one.state_dict(), other.state_dict()
    assert [list(own) for own in a["state"].values()] == [list(own) for own in b["state"].values()]
    assert [group.keys() for group in a["param_groups"]] == [
        group.keys() for group in b["param_groups"]
    ]


@by_case
def test_a_training_moves_from_torch_and_back(case: Input) -> None:
    torchs = trained(case, torch.optim)
    ours = moved(torchs, optim, case)
    assert_alike(torchs, ours)
    assert_same(tensors(ours), tensors(torchs))
    trained(case, optim, 3, given=ours)
    back = moved(ours, torch.optim, case)
    assert_same(tensors(back), tensors(ours))
    trained(case, torch.optim, 6, given=back)
    straight = trained(case, torch.optim, steps=9)
    assert_alike(back, straight)
    for got, wanted in zip(tensors(back), tensors(straight), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-7)


@by_case
def test_a_training_goes_on_where_it_was_saved(case: Input) -> None:
    straight = trained(case, optim, steps=6)
    begun = trained(case, optim)
    for resumed in (
        moved(begun, optim, case),
        copy.deepcopy(begun),
        pickle.loads(pickle.dumps(begun)),
    ):
        assert_alike(resumed, begun)
        assert_same(tensors(trained(case, optim, 3, given=resumed)), tensors(straight))
    assert_same(tensors(trained(case, optim, 3, given=begun)), tensors(straight))


@by_case
def test_files_hold_nothing_but_tensors_and_numbers(case: Input) -> None:
    file = io.BytesIO()
    ours = trained(case, optim)
    torch.save(ours.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    other = moved(ours, optim, case)
    other.load_state_dict(loaded)
    assert_same(tensors(other), tensors(ours))


def test_a_file_holds_no_more_than_the_state() -> None:
    param = torch.nn.Parameter(torch.zeros(1_000_000))
    ours = optim.Adam([param])
    param.grad = torch.ones_like(param)
    ours.step()
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    assert file.tell() < 2 * 4_000_000 + 10_000


def test_state_is_made_at_the_first_gradient() -> None:
    params = params_of(torch.float32)
    ours = optim.Adam(params)
    assert ours.state_dict()["state"] == {}
    params[1].grad = torch.ones_like(params[1])
    ours.step()
    assert list(ours.state_dict()["state"]) == [1]
    give(params, 1)
    ours.step()
    steps = [own["step"].item() for own in ours.state_dict()["state"].values()]
    assert sorted(steps) == [1, 1, 1, 2]


@pytest.mark.parametrize("name", CLASSES)
def test_steps_count_apart(name: str) -> None:
    """A parameter without a gradient stands still, and each has a number of its own."""
    if name in ("SparseAdam",):
        pytest.skip("takes sparse gradients alone")
    both = [FIRST[name].make(module, params_of(torch.float32)) for module in (optim, torch.optim)]
    for step in range(6):
        for each in both:
            params = each.param_groups[0]["params"]
            give(params, step)
            params[step % 2].grad = None
            each.step()
    for got, wanted in zip(*map(tensors, both), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-6, atol=1e-7)


def test_a_number_that_was_set_by_hand_counts() -> None:
    both = [trained(FIRST["Adam"], module) for module in (optim, torch.optim)]
    for each in both:
        params = each.param_groups[0]["params"]
        each.state[params[0]]["step"].fill_(100)
        each.state[params[1]]["exp_avg"] = torch.full_like(params[1], 2.0)
        trained(FIRST["Adam"], None, 3, given=each)
    for got, wanted in zip(*map(tensors, both), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("how", ["data", "set", "entry", "whole"])
def test_state_that_was_moved_is_found(how: str) -> None:
    ours, other = (trained(FIRST["Adam"], optim) for _ in range(2))
    param = ours.param_groups[0]["params"][0]
    own = ours.state[param]
    if how == "data":
        own["exp_avg"].data = own["exp_avg"].clone()
        own["step"].data = own["step"].clone()
    elif how == "set":
        own["exp_avg"].set_(own["exp_avg"].clone())
    elif how == "entry":
        own["exp_avg"], own["step"] = own["exp_avg"].clone(), own["step"].clone()
    else:
        ours.state[param] = {key: value.clone() for key, value in own.items()}
    before = ours.state[param]["exp_avg"].clone()
    for each in (ours, other):
        trained(FIRST["Adam"], None, 3, given=each)
    assert not torch.equal(ours.state[param]["exp_avg"], before)
    assert_same(tensors(ours), tensors(other))


def test_a_loaded_state_has_numbers_of_its_own() -> None:
    """Torch takes over the tensors that it is given; steps of one are none of the other's."""
    one = trained(FIRST["Adam"], optim)
    other = FIRST["Adam"].make(optim, params_of(torch.float32))
    other.load_state_dict(one.state_dict())
    trained(FIRST["Adam"], None, 3, given=other)
    assert {own["step"].item() for own in one.state.values()} == {3}
    assert {own["step"].item() for own in other.state.values()} == {6}

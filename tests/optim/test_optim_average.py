"""Averages of the weights in the step's own sweep: torch's numbers, rows, files, swapping."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn

import thalweg
from rulebook import assert_same
from thalweg import optim
from thalweg.errors import CheckpointWarning, FailedPreconditionError
from thalweg.optim import tensorflow
from torch_inputs import ROWS, SHAPES, params_of, set_grads

MAKERS: dict[str, Any] = {
    "Adam": lambda p, **o: optim.Adam(p, lr=0.1, **o),
    "SGD": lambda p, **o: optim.SGD(p, lr=0.1, **o),
    "momentum": lambda p, **o: optim.SGD(p, lr=0.1, momentum=0.9, **o),
    "tensorflow": lambda p, **o: tensorflow.Ftrl(p, lr=0.1, **o),
    "LazyAdam": lambda p, **o: tensorflow.LazyAdam(p, lr=0.1, **o),
}


def steps(made: Any, count: int, sparse: bool = False, first: int = 0) -> Any:
    for step in range(first, first + count):
        set_grads(made.param_groups[0]["params"], step, sparse)
        made.step()
    return made


def averages(made: Any) -> list[torch.Tensor]:
    return [made.state[param]["ema"] for param in made.param_groups[0]["params"]]


@pytest.mark.parametrize("decay", [0.9, 0.25])
@pytest.mark.parametrize(
    ("name", "sparse"),
    [
        ("Adam", False),
        ("momentum", False),
        ("tensorflow", False),
        ("SGD", True),
        ("LazyAdam", True),
    ],
)
def test_the_average_is_torchs(name: str, sparse: bool, decay: float) -> None:
    shapes = ROWS if sparse else SHAPES
    made = MAKERS[name](params_of(torch.float32, shapes), ema_decay=decay)
    plain = MAKERS[name](params_of(torch.float32, shapes))
    update, wanted = get_ema_multi_avg_fn(decay), []
    for step in range(5):
        steps(made, 1, sparse, step)
        steps(plain, 1, sparse, step)
        now = [param.detach().clone() for param in plain.param_groups[0]["params"]]
        wanted = wanted or now
        if step:
            update(wanted, now, step)
        for got, expected in zip(averages(made), wanted, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)
    params = [param.detach() for param in made.param_groups[0]["params"]]
    if name == "SGD":  # entries of one row are added up first
        torch.testing.assert_close(params, now)
    else:
        assert_same(params, now)


@pytest.mark.parametrize(
    ("name", "sparse"), [("momentum", False), ("LazyAdam", False), ("LazyAdam", True)]
)
def test_engines_agree(name: str, sparse: bool) -> None:
    both = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            both.append(
                steps(MAKERS[name](params_of(torch.float32, ROWS), ema_decay=0.9), 3, sparse)
            )
    assert_same(*map(averages, both))


def test_a_parameter_begins_its_average_with_its_first_step() -> None:
    made = optim.SGD(params_of(torch.float32, ((3,), (4,))), lr=0.1, momentum=0.9, ema_decay=0.5)
    first, second = made.param_groups[0]["params"]
    set_grads([first], 0)
    made.step()
    assert_same([made.state[first]["ema"]], [first.detach()])
    set_grads([first, second], 1)
    made.step()
    assert_same([made.state[second]["ema"]], [second.detach()])
    assert not torch.equal(made.state[first]["ema"], first.detach())


@pytest.mark.parametrize("name", ["Adam", "LazyAdam"])
def test_averages_are_saved_and_swapped_in(name: str) -> None:
    made = steps(MAKERS[name](params_of(torch.float32), ema_decay=0.9), 3)
    params = [param.detach().clone() for param in made.param_groups[0]["params"]]
    with made.swapped():
        assert_same([param.detach() for param in made.param_groups[0]["params"]], averages(made))
        with pytest.raises(FailedPreconditionError, match="inside of swapped"):
            made.step()
    assert_same([param.detach() for param in made.param_groups[0]["params"]], params)
    other = MAKERS[name]([param.clone().requires_grad_() for param in params], ema_decay=0.9)
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    assert_same(*(averages(steps(each, 3, first=3)) for each in (made, other)))
    with (
        pytest.raises(ValueError, match="no averages without ema_decay"),
        MAKERS[name](params_of(torch.float32)).swapped(),
    ):
        pass


@pytest.mark.parametrize("name", ["SGD", "tensorflow"])
def test_averages_are_swapped_in_once(name: str) -> None:
    made = steps(MAKERS[name](params_of(torch.float32), ema_decay=0.9), 3)
    params = made.param_groups[0]["params"]
    before = copy.deepcopy(made.state_dict())["state"], [param.detach().clone() for param in params]
    with made.swapped():
        with pytest.raises(FailedPreconditionError, match=r"called inside of swapped\(\)"):
            made.swapped().__enter__()
        assert_same([param.detach() for param in params], averages(made))
        with pytest.raises(FailedPreconditionError, match="step inside of swapped"):
            made.step()
    assert_same([param.detach() for param in params], before[1])
    torch.testing.assert_close(made.state_dict()["state"], before[0], rtol=0, atol=0)
    steps(made, 1)


def test_averages_of_narrow_parameters_are_wide() -> None:
    made = steps(optim.Adam(params_of(torch.bfloat16), ema_decay=0.99), 3)
    assert {each.dtype for each in averages(made)} == {torch.float32}
    assert {made.state[p]["exp_avg"].dtype for p in made.state} == {torch.bfloat16}
    other = optim.Adam([p.detach().clone().requires_grad_() for p in made.state], ema_decay=0.99)
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    assert_same(averages(steps(other, 2, first=3)), averages(steps(made, 2, first=3)))
    plain = steps(optim.Adam(params_of(torch.bfloat16)), 1)
    with pytest.warns(CheckpointWarning, match=r"Adam with ema_decay: .* has no 'ema', which beg"):
        other.load_state_dict(plain.state_dict())


def test_a_decay_is_a_share() -> None:
    with pytest.raises(ValueError, match=r"ema_decay must be in \[0, 1\), not 1.0"):
        optim.Adam(params_of(torch.float32), ema_decay=1.0)

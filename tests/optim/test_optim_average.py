"""`ema_decay`: averages equal to torch's, sparse rows, states, `swapped()`."""

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


def run_steps(opt: Any, count: int, sparse: bool = False, first: int = 0) -> Any:
    for step in range(first, first + count):
        set_grads(opt.param_groups[0]["params"], step, sparse)
        opt.step()
    return opt


def averages(opt: Any) -> list[torch.Tensor]:
    return [opt.state[param]["ema"] for param in opt.param_groups[0]["params"]]


@pytest.mark.one_in(3)
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
def test_average_equals_torch_averaged_model(name: str, sparse: bool, decay: float) -> None:
    shapes = ROWS if sparse else SHAPES
    opt = MAKERS[name](params_of(torch.float32, shapes), ema_decay=decay)
    reference = MAKERS[name](params_of(torch.float32, shapes))
    update, expected_averages = get_ema_multi_avg_fn(decay), []
    for step in range(5):
        run_steps(opt, 1, sparse, step)
        run_steps(reference, 1, sparse, step)
        weights = [param.detach().clone() for param in reference.param_groups[0]["params"]]
        expected_averages = expected_averages or weights
        if step:
            update(expected_averages, weights, step)
        for got, expected in zip(averages(opt), expected_averages, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)
    params = [param.detach() for param in opt.param_groups[0]["params"]]
    if name == "SGD":  # entries of one row are added up first
        torch.testing.assert_close(params, weights)
    else:
        assert_same(params, weights)


@pytest.mark.parametrize(
    ("name", "sparse"), [("momentum", False), ("LazyAdam", False), ("LazyAdam", True)]
)
def test_engines_agree_on_averages(name: str, sparse: bool) -> None:
    results = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            results.append(
                run_steps(MAKERS[name](params_of(torch.float32, ROWS), ema_decay=0.9), 3, sparse)
            )
    assert_same(*map(averages, results))


def test_a_parameter_begins_its_average_with_its_first_step() -> None:
    opt = optim.SGD(params_of(torch.float32, ((3,), (4,))), lr=0.1, momentum=0.9, ema_decay=0.5)
    first, second = opt.param_groups[0]["params"]
    set_grads([first], 0)
    opt.step()
    assert_same([opt.state[first]["ema"]], [first.detach()])
    set_grads([first, second], 1)
    opt.step()
    assert_same([opt.state[second]["ema"]], [second.detach()])
    assert not torch.equal(opt.state[first]["ema"], first.detach())


@pytest.mark.parametrize("name", ["Adam", "LazyAdam"])
def test_averages_are_saved_and_swapped_in(name: str) -> None:
    opt = run_steps(MAKERS[name](params_of(torch.float32), ema_decay=0.9), 3)
    params = [param.detach().clone() for param in opt.param_groups[0]["params"]]
    with opt.swapped():
        assert_same([param.detach() for param in opt.param_groups[0]["params"]], averages(opt))
        with pytest.raises(FailedPreconditionError, match="inside of swapped"):
            opt.step()
    assert_same([param.detach() for param in opt.param_groups[0]["params"]], params)
    loaded = MAKERS[name]([param.clone().requires_grad_() for param in params], ema_decay=0.9)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert_same(*(averages(run_steps(stepped, 3, first=3)) for stepped in (opt, loaded)))
    with (
        pytest.raises(ValueError, match="no averages without ema_decay"),
        MAKERS[name](params_of(torch.float32)).swapped(),
    ):
        pass


@pytest.mark.parametrize("name", ["SGD", "tensorflow"])
def test_averages_are_swapped_in_once(name: str) -> None:
    opt = run_steps(MAKERS[name](params_of(torch.float32), ema_decay=0.9), 3)
    params = opt.param_groups[0]["params"]
    previous = (
        copy.deepcopy(opt.state_dict())["state"],
        [param.detach().clone() for param in params],
    )
    with opt.swapped():
        with pytest.raises(FailedPreconditionError, match=r"called inside of swapped\(\)"):
            opt.swapped().__enter__()
        assert_same([param.detach() for param in params], averages(opt))
        with pytest.raises(FailedPreconditionError, match="step inside of swapped"):
            opt.step()
    assert_same([param.detach() for param in params], previous[1])
    torch.testing.assert_close(opt.state_dict()["state"], previous[0], rtol=0, atol=0)
    run_steps(opt, 1)


def test_averages_of_narrow_parameters_are_wide() -> None:
    opt = run_steps(optim.Adam(params_of(torch.bfloat16), ema_decay=0.99), 3)
    assert {average.dtype for average in averages(opt)} == {torch.float32}
    assert {opt.state[p]["exp_avg"].dtype for p in opt.state} == {torch.bfloat16}
    loaded = optim.Adam([p.detach().clone().requires_grad_() for p in opt.state], ema_decay=0.99)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert_same(averages(run_steps(loaded, 2, first=3)), averages(run_steps(opt, 2, first=3)))
    reference = run_steps(optim.Adam(params_of(torch.bfloat16)), 1)
    with pytest.warns(CheckpointWarning, match=r"Adam with ema_decay: .* has no 'ema', which beg"):
        loaded.load_state_dict(reference.state_dict())


def test_ema_decay_out_of_range_raises() -> None:
    with pytest.raises(ValueError, match=r"ema_decay must be in \[0, 1\), not 1.0"):
        optim.Adam(params_of(torch.float32), ema_decay=1.0)

"""Gradients of several passes in one step: the sum, freed gradients, files in the middle."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rulebook import assert_same
from thalweg import checkpoint, optim
from thalweg.errors import CheckpointWarning, LayoutError
from thalweg.optim import tensorflow
from torch_inputs import CLASSES, ROWS, params_of, set_grads

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
            set_grads(params, step * passes + k, sparse)
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
        set_grads(params, call, sparse)
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


def over_again(made: Any) -> Any:
    """An optimizer of the same kind, which has loaded the state."""
    params = [value.clone().requires_grad_() for value in values(made)]
    other = type(made)(params, lr=0.1, accumulate=3)
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    return other


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}], ids=str)
@pytest.mark.parametrize("name", ["Adagrad", "RMSprop"])
@pytest.mark.parametrize("by_file", [True, False])
def test_what_had_no_step_has_no_average_yet(
    name: str, by_file: bool, options: dict[str, Any], tmp_path: Path
) -> None:
    made, other = (
        getattr(optim, name)(
            params_of(torch.bfloat16, ROWS), ema_decay=0.9, masters=True, **options
        )
        for _ in range(2)
    )
    made.param_groups[0]["params"][0].grad = torch.ones(ROWS[0], dtype=torch.bfloat16)
    made.step()
    if by_file:
        checkpoint.save(tmp_path / "made", optimizer=made)
        checkpoint.restore(tmp_path / "made", optimizer=other)
    else:
        other.load_state_dict(copy.deepcopy(made.state_dict()))
    with torch.no_grad():
        for param, value in zip(values(other), values(made), strict=True):
            param.copy_(value)
    for each in (made, other):
        for call in range(4):
            set_grads(each.param_groups[0]["params"], call)
            each.step()
    assert_same(values(other), values(made))


@pytest.mark.parametrize("again", [over_again, copy.deepcopy], ids=["loaded", "copied"])
@pytest.mark.parametrize("name", [name for name in CLASSES if name != "SparseAdam"])
def test_sums_before_the_first_step_are_saved(name: str, again: Any) -> None:
    made = folded(getattr(optim, name)(params_of(torch.float32), lr=0.1, accumulate=3), 2)
    other = again(made)
    for each in (made, other):
        folded(each, 4, 2)
    assert_same(values(other), values(made))


HELD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda buffer: buffer,
    "a view": lambda buffer: buffer.view(3),
    "detached": torch.Tensor.detach,
    "an array": lambda buffer: torch.from_numpy(buffer.numpy()),
}


@pytest.mark.parametrize("given", HELD.values(), ids=HELD)
@pytest.mark.parametrize("name", MAKERS)
def test_gradients_that_others_hold_are_copied(name: str, given: Any) -> None:
    buffer = torch.zeros(3)
    both = [torch.ones(3).requires_grad_() for _ in range(2)]
    made = MAKERS[name](both, accumulate=3)
    for call in range(3):
        filled = torch.tensor([1.0, 3.0 - 2 * call, -3.0])
        buffer.copy_(filled)
        for param in both:
            param.grad = given(buffer)
        made.step()
        assert_same([buffer], [filled])
    other = MAKERS[name]([torch.ones(3).requires_grad_() for _ in both])
    for param in other.param_groups[0]["params"]:
        param.grad = torch.tensor([3.0, 3.0, -9.0])
    other.step()
    assert_same(values(made), values(other))


def test_sums_may_be_wide() -> None:
    made = optim.SGD([torch.zeros(2, dtype=torch.bfloat16).requires_grad_()], lr=1.0,
                     accumulate=300, wide_sums=True)  # fmt: skip
    (param,) = made.param_groups[0]["params"]
    for _ in range(300):
        param.grad = torch.ones_like(param)
        made.step()
    assert param.tolist() == [-300.0, -300.0]  # a sum of 16 bits ends at 256


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_sums_beside_masters_are_wide(name: str, dtype: torch.dtype, sparse: bool) -> None:
    if sparse and name != "LazyAdam":
        return
    params = params_of(dtype, ROWS)
    wide = [param.detach().float().requires_grad_() for param in params]
    made, other = MAKERS[name](params, accumulate=2, masters=True), MAKERS[name](wide, accumulate=2)
    for call in range(4):
        set_grads(params, call, sparse)
        for param, copied in zip(params, wide, strict=True):
            copied.grad = None if param.grad is None else param.grad.float()
        made.step()
        other.step()
    assert_same([made.state[param]["master"] for param in params], values(other))
    assert_same(values(made), [value.to(dtype) for value in values(other)])


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
    set_grads(made.param_groups[0]["params"], 1)
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


@pytest.mark.parametrize("made", [optim.SGD, tensorflow.Adam])
def test_without_groups_there_is_nothing_to_add_up(made: Any) -> None:
    optimizer = made([torch.nn.Parameter(torch.ones(3))], lr=0.1, accumulate=2)
    optimizer.param_groups.clear()
    optimizer.step()
    assert optimizer.last_step is not None
    assert not optimizer.last_step.taken


@pytest.mark.parametrize("calls", [1, 3, 4])
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("by_file", [False, True])
def test_sums_that_no_step_would_take_are_left_behind(
    name: str, calls: int, by_file: bool, tmp_path: Path
) -> None:
    """They would be added to the gradients of a training that goes on with sums later."""
    saved = folded(MAKERS[name](params_of(torch.float32, ROWS), accumulate=2), calls)
    made = MAKERS[name](params_of(torch.float32, ROWS))

    def load() -> None:
        if not by_file:
            made.load_state_dict(saved.state_dict())
            return
        checkpoint.save(tmp_path / "run", optimizer=saved)
        checkpoint.restore(tmp_path / "run", optimizer=made, check_arguments=False)

    if calls % 2:
        with pytest.warns(CheckpointWarning, match="sums of gradients .* are left behind"):
            load()
    else:
        load()
    assert not any("gradient_sum" in own for own in made.state.values())
    assert not any(group.get("folded") for group in made.param_groups)
    set_grads(made.param_groups[0]["params"], 9)
    made.step()
    assert made.last_step is not None
    assert made.last_step.count == 1


def on_its_parameter(params: list[torch.Tensor], sums: list[torch.Tensor]) -> str:
    sums[1].data = params[1].data
    return "share memory"


def on_another_parameter(params: list[torch.Tensor], sums: list[torch.Tensor]) -> str:
    params[0].data = sums[1].detach()
    return "share memory"


def on_another_sum(params: list[torch.Tensor], sums: list[torch.Tensor]) -> str:
    sums[1].data = sums[0].data
    return "share memory"


def expanded(params: list[torch.Tensor], sums: list[torch.Tensor]) -> str:
    sums[1].data = torch.ones(1).expand(3)
    return "its elements share memory"


@pytest.mark.parametrize(
    "change", [on_its_parameter, on_another_parameter, on_another_sum, expanded]
)
@pytest.mark.parametrize("made", [optim.SGD, tensorflow.SGD])
def test_sums_have_memory_of_their_own(made: Any, change: Any) -> None:
    params = [torch.nn.Parameter(torch.full((3,), 2.0)) for _ in range(2)]
    opt = made(params, lr=0.5, accumulate=3)
    for param in params:
        param.grad = torch.ones(3)
    opt.step()
    sums = [opt.state[param]["gradient_sum"] for param in params]
    message = change(params, sums)
    for param in params:
        param.grad = torch.ones(3)
    before = repr(opt.state_dict()), [param.tolist() for param in params]
    with pytest.raises(LayoutError, match=message):
        opt.step()
    assert (repr(opt.state_dict()), [param.tolist() for param in params]) == before


def test_gradients_that_lie_in_sums_are_added_as_they_were() -> None:
    params = [torch.nn.Parameter(torch.zeros(3)) for _ in range(3)]
    opt = optim.SGD(params, lr=1.0, accumulate=2)
    for number, param in enumerate(params):
        param.grad = torch.full((3,), 1.0 + number)
    opt.step()
    sums = [opt.state[param]["gradient_sum"].detach() for param in params]
    params[0].grad, params[1].grad, params[2].grad = sums[0], sums[0], sums[1]
    opt.step()
    assert [param.tolist() for param in params] == [[-2.0] * 3, [-3.0] * 3, [-5.0] * 3]


@pytest.mark.parametrize("name", MAKERS)
def test_passes_without_gradients_are_left_behind(name: str) -> None:
    """Else a training that goes on with sums later would take its first step too early."""
    saved = MAKERS[name](params_of(torch.float32, ROWS), accumulate=2)
    saved.step()
    made = MAKERS[name](params_of(torch.float32, ROWS))
    made.load_state_dict(saved.state_dict())
    assert not any(group.get("folded") for group in made.param_groups)

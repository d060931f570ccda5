"""Numbers of parameters lie in one block where they are ours; what others hand in stays there."""

from __future__ import annotations

import copy
import ctypes
import pickle
from typing import Any

import pytest
import torch
import torch.multiprocessing as processes

from rulebook import assert_same
from thalweg import optim
from thalweg.optim import tensorflow
from thalweg.optim.device_param_scalars import ForeignThere
from torch_inputs import CLASSES, ROWS, params_of, set_grads

NUMBERS = ("step", "eta", "mu", "mu_product")
COUNTING = [name for name in CLASSES if name not in ("SGD", "SparseAdam")]
OPTIONS: dict[str, dict[str, Any]] = {"ASGD": {"t0": 2, "lambd": 0.1}, "Adagrad": {"lr_decay": 0.1}}


def steps(optimizer: Any, first: int, last: int) -> Any:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for step in range(first, last):
        set_grads(params, step, "Sparse" in type(optimizer).__name__)
        optimizer.step()
    return optimizer


def made_by(module: Any, name: str, **options: Any) -> Any:
    given = {**OPTIONS.get(name, {}), **options}
    return getattr(module, name)(params_of(torch.float32, ROWS), lr=0.1, **given)


def numbers(optimizer: Any) -> list[torch.Tensor]:
    return [own[name] for own in optimizer.state.values() for name in NUMBERS if name in own]


def is_one_block(optimizer: Any) -> bool:
    """Whether the counts of all parameters are elements of one tensor."""
    bases = {id(own["step"]._base) for own in optimizer.state.values()}
    return len(bases) == 1 and bases != {id(None)}


@pytest.mark.parametrize("name", COUNTING)
@pytest.mark.parametrize("which", ["all", "first"])
def test_numbers_that_are_handed_in_stay_where_they_are(name: str, which: str) -> None:
    ours, torchs = (steps(made_by(module, name), 0, 2) for module in (optim, torch.optim))
    handed: list[torch.Tensor] = []
    for own in list(ours.state.values())[: 1 if which == "first" else None]:
        for key in NUMBERS:
            if key in own:
                own[key] = own[key].clone()
                handed.append(own[key])
    places = [each.data_ptr() for each in handed]
    for step in range(2, 6):
        if step == 4:  # as another process would, whose writes are counted nowhere
            for each in handed:
                each.numpy()[...] += 1
            for own in list(torchs.state.values())[: 1 if which == "first" else None]:
                for key in NUMBERS:
                    if key in own:
                        own[key].add_(1)
        for each in (ours, torchs):
            steps(each, step, step + 1)
        assert all(any(one is two for two in numbers(ours)) for one in handed)
        assert [each.data_ptr() for each in handed] == places
        for got, wanted in zip(numbers(ours), numbers(torchs), strict=True):
            torch.testing.assert_close(got, wanted)
    for got, wanted in zip(ours.state, torchs.state, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["NAdam", "ASGD"])
@pytest.mark.parametrize("other", [torch.float32, torch.bfloat16])
def test_numbers_that_were_loaded_have_types_of_their_own(name: str, other: Any) -> None:
    """Torch makes what it loads the parameter's dtype, counts of steps excepted."""
    made: list[Any] = []
    for module in (optim, torch.optim):
        params = [
            torch.full((3,), 0.7, dtype=dtype).requires_grad_() for dtype in (torch.float64, other)
        ]
        cls = getattr(module, name)
        first, again = (cls(params, lr=0.1, **OPTIONS.get(name, {})) for _ in range(2))
        steps(first, 0, 2)
        again.load_state_dict(copy.deepcopy(first.state_dict()))
        made.append(steps(again, 2, 6))
    close = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 0.02}
    found, wanted = (numbers(each) + [param.detach() for param in each.state] for each in made)
    for got, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, right, rtol=close[got.dtype], atol=0)


def in_common(optimizer: Any, how: str) -> Any:
    """An optimizer of which all parameters count in one tensor."""
    steps(optimizer, 0, 2)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for name in NUMBERS:
        if name in optimizer.state[params[0]]:
            one = optimizer.state[params[0]][name]
            one = torch.as_tensor(one).clone() if how == "handed in" else one
            for param in params:
                is_memory = how == "by memory" and isinstance(one, torch.Tensor)
                own = torch.from_numpy(one.numpy()) if is_memory else one
                optimizer.state[param][name] = own
    return steps(optimizer, 2, 5)


@pytest.mark.parametrize("how", ["handed in", "by memory", "the first one's"])
@pytest.mark.parametrize("name", [name for name in CLASSES if name not in ("SGD",)])
def test_parameters_that_count_in_one_tensor_have_torchs_numbers(name: str, how: str) -> None:
    """Which raises it for one parameter after the other."""
    ours, torchs = (in_common(made_by(module, name), how) for module in (optim, torch.optim))
    for got, wanted in zip(numbers(ours), numbers(torchs), strict=True):
        torch.testing.assert_close(got, wanted)
    for got, wanted in zip(ours.state, torchs.state, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-6)


def test_parameters_of_two_rules_may_count_in_one_tensor() -> None:
    made: list[Any] = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32, ROWS)
        groups = [{"params": params[:1]}, {"params": params[1:], "amsgrad": True}]
        made.append(in_common(module.Adam(groups, lr=0.1), "handed in"))
    for got, wanted in zip(*(each.state for each in made), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"clip_grad_norm": 1.0}, {"ema_decay": 0.9}], ids=str)
def test_one_count_beside_options_is_refused_by_name(options: dict[str, Any]) -> None:
    made = made_by(optim, "Adam", **options)
    with pytest.raises(
        NotImplementedError, match=r"'step' of '.*' and of '.*' is one tensor"
    ) as error:
        in_common(made, "handed in")
    assert "The step was not taken: no variable and no slot has changed." in error.value.__notes__


def test_the_step_of_an_optimizer_is_counted_once() -> None:
    params = params_of(torch.float32, ROWS)
    made = in_common(tensorflow.Adam(params, lr=0.1), "handed in")
    other = steps(tensorflow.Adam(params_of(torch.float32, ROWS), lr=0.1), 0, 5)
    assert {int(own["step"]) for own in made.state.values()} == {5}
    assert_same([p.detach() for p in made.state], [p.detach() for p in other.state])


def test_a_new_parameter_counts_beside_one_that_was_handed_in() -> None:
    params = params_of(torch.float32, ROWS)
    made = optim.Adam(params)
    params[0].grad = torch.ones_like(params[0])
    made.step()
    mine = made.state[params[0]]["step"] = torch.tensor(7.0)
    steps(made, 0, 2)
    assert mine is made.state[params[0]]["step"]
    assert [own["step"].item() for own in made.state.values()] == [9, 2]


@pytest.mark.parametrize("name", ["Nadam", "LazyAdam"])
def test_counts_of_a_rule_stay_where_they_are(name: str) -> None:
    made, other = (steps(made_by(tensorflow, name), 0, 2) for _ in range(2))
    handed = {
        param: {key: x.clone() for key, x in own.items()} for param, own in made.state.items()
    }
    for param, own in handed.items():
        made.state[param].update(own)
    for each in (made, other):
        steps(each, 2, 5)
    for param, own in handed.items():
        assert all(made.state[param][key] is value for key, value in own.items())
    assert {own["step"].item() for own in handed.values()} == {5}
    assert_same([p.detach() for p in made.state], [p.detach() for p in other.state])


def test_a_count_of_a_class_with_plain_numbers_may_be_a_tensor() -> None:
    """As that of an Adam whose state it is given."""
    both = [made_by(module, "SparseAdam") for module in (torch.optim, optim)]
    state = steps(made_by(torch.optim, "Adam"), 0, 3).state_dict()
    for each in both:
        each.load_state_dict(copy.deepcopy(state))
        given = [own["step"] for own in each.state.values()]
        steps(each, 3, 5)
        assert all(x is y["step"] for x, y in zip(given, each.state.values(), strict=True))
    assert [x.item() for x in numbers(both[1])] == [x.item() for x in numbers(both[0])] == [5, 5]
    for got, wanted in zip(both[1].state, both[0].state, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", COUNTING)
def test_what_is_ours_is_one_block(name: str) -> None:
    """Also what a class of torch's made, what was loaded, and what a copy has."""
    made = steps(made_by(optim, name), 0, 2)
    loaded, of_torch = made_by(optim, name), made_by(optim, name)
    loaded.load_state_dict(made.state_dict())
    of_torch.load_state_dict(steps(made_by(torch.optim, name), 0, 2).state_dict())
    many = (made, loaded, of_torch, copy.deepcopy(made), pickle.loads(pickle.dumps(made)))
    for each in many:
        assert is_one_block(each)
        before = [id(x) for x in numbers(each)]
        steps(each, 2, 4)
        assert is_one_block(each)
        assert [id(x) for x in numbers(each)] == before
        assert {own["step"].item() for own in each.state.values()} == {4}
    assert len({x.data_ptr() for each in many for x in numbers(each)}) == len(numbers(made)) * 5


@pytest.mark.parametrize("when", ["before", "after"])
def test_numbers_that_are_shared_are_read_in_every_step(when: str) -> None:
    made = steps(made_by(optim, "NAdam"), 0, 2)
    for each in numbers(made):
        each.share_memory_()
    places = [each.data_ptr() for each in numbers(made)]
    if when == "after":
        steps(made, 2, 3)
    for own in made.state.values():
        own["step"].numpy()[...] = 10
    steps(made, 3, 4)
    assert [each.data_ptr() for each in numbers(made)] == places
    assert {own["step"].item() for own in made.state.values()} == {11}


def test_shared_numbers_are_loaded_where_they_are() -> None:
    state = steps(made_by(torch.optim, "Adam"), 0, 2).state_dict()
    for own in state["state"].values():
        own["step"].share_memory_()
    made = made_by(optim, "Adam")
    made.load_state_dict(state)
    steps(made, 2, 3)
    for own, given in zip(made.state.values(), state["state"].values(), strict=True):
        assert own["step"] is given["step"]
        assert given["step"].item() == 3


def _work(optimizer: Any) -> None:
    torch.set_num_threads(1)
    steps(optimizer, 2, 5)


def test_workers_count_together() -> None:
    made, alone = (made_by(optim, "Adagrad") for _ in range(2))
    for param, own in made.state.items():
        param.share_memory_()
        for each in own.values():
            each.share_memory_()
    steps(made, 0, 2)
    worker = processes.get_context("fork").Process(target=_work, args=(made,))
    worker.start()
    worker.join(120)
    assert worker.exitcode == 0
    steps(alone, 0, 5)
    assert {own["step"].item() for own in made.state.values()} == {5}
    assert_same([p.detach() for p in made.state], [p.detach() for p in alone.state])
    for each in (made, alone):
        steps(each, 5, 6)
    assert_same([p.detach() for p in made.state], [p.detach() for p in alone.state])


def test_a_device_counts_where_numbers_are() -> None:
    """What a GPU does with such tensors, which need not be one block."""
    own = [torch.tensor(3.0), torch.tensor(5.0)]
    column = ForeignThere("step", own)
    column.counting(None)()
    column.counting(torch.tensor(False))()
    own[0].add_(10)
    column.read()
    assert column.common.tolist() == [14, 6]
    column.moving(torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor(True))()
    assert [each.item() for each in own] == [1, 2]
    column.read()
    column.moving(torch.tensor([7.0, 8.0]), torch.tensor(False))()
    assert [each.item() for each in own] == [1, 2]
    column.moving(torch.tensor(9.0), None)()
    assert [each.item() for each in own] == [9, 9]


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_count_in_float32_stands_still_where_torchs_does(is_loaded: bool) -> None:
    sides = [made_by(module, "Adam") for module in (optim, torch.optim)]
    for opt in sides:
        steps(opt, 0, 1)
        for own in opt.state.values():
            own["step"].fill_(2.0**24 - 3)
        if is_loaded:
            opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        steps(opt, 1, 9)
    assert [float(number) for number in numbers(sides[0])] == [2.0**24] * len(sides[0].state)
    for one, other in zip(*map(numbers, sides), strict=True):
        assert torch.equal(one, other)


def by_data(number: torch.Tensor) -> None:
    number.data.fill_(40)


def through_numpy(number: torch.Tensor) -> None:
    number.numpy()[...] = 40


def from_outside(number: torch.Tensor) -> None:
    """As a process group does, which writes what another rank has."""
    ctypes.c_float.from_address(number.data_ptr()).value = 40


@pytest.mark.parametrize("options", [{}, {"ema_decay": 0.9}, {"clip_grad_norm": 1.0}])
@pytest.mark.parametrize("which", ["all", "one"])
@pytest.mark.parametrize("write", [by_data, through_numpy, from_outside])
@pytest.mark.parametrize("name", ["Adam", "NAdam", "RAdam"])
def test_writes_that_no_version_tells_of_are_seen(
    name: str, write: Any, which: str, options: dict[str, Any]
) -> None:
    ours, theirs = made_by(optim, name, **options), made_by(torch.optim, name)
    for opt in (ours, theirs):
        for first, last in ((0, 5), (5, 7)):
            steps(opt, first, last)
            every = [own["step"] for own in opt.state.values()]
            for number in every if which == "all" else every[1:2]:
                write(number)
        steps(opt, 7, 9)
    found, wanted = ([own["step"].item() for own in opt.state.values()] for opt in (ours, theirs))
    assert found == wanted
    assert 42 in found
    if not options:
        for one, other in zip(ours.state, theirs.state, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)

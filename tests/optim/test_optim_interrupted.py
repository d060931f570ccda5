"""Steps of `thalweg.optim` that fail or are interrupted: whole, counted, and told truly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from attack.interruptions import TRAININGS
from interruptions import outcome
from thalweg import optim
from thalweg.errors import FailedPreconditionError

NOT_TAKEN = "The step was not taken: no variable and no slot has changed."
ALL = 10**9  # more instructions than a step has


def given(params: list[Any], value: float) -> None:
    for param in params:
        param.grad = torch.full_like(param, value)


def failing(*_: Any) -> Any:
    raise ValueError("burnt")


MAKERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: optim.SGD(p, lr=1.0, accumulate=2),
    "many rules": lambda p: optim.SGD(
        [{"params": p[:1]}, {"params": p[1:], "momentum": 0.5}], lr=1.0, accumulate=2
    ),
    "tensorflow": lambda p: optim.tensorflow.SGD(p, lr=1.0, accumulate=2),
}


@pytest.mark.parametrize("name", MAKERS)
def test_sums_of_a_step_that_was_taken_are_gone(name: str) -> None:
    params: list[Any] = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    made = MAKERS[name](params)
    for value in (1.0, 1.0, 10.0):
        given(params, value)
        made.step()
    params[0].constraint = failing
    given(params, 10.0)
    with pytest.raises(ValueError, match="burnt") as raised:
        made.step()
    assert raised.value.__notes__[0].startswith("The step was taken, but without the constraint")
    assert (params[0].item(), made.last_step.taken, made.last_step.count) == (-22.0, True, 2)
    del params[0].constraint
    given(params, 100.0)
    made.step()
    assert (params[0].item(), made.last_step.reason) == (-22.0, "1 of 2 gradients are summed up")
    given(params, 100.0)
    made.step()
    assert params[0].item() == -222.0


def test_sums_of_a_step_that_was_not_taken_stay_and_are_told() -> None:
    param = torch.nn.Parameter(torch.zeros(1))
    made = optim.SGD([param], lr=1.0, accumulate=2)
    given([param], 1.0)
    made.step()
    given([param], 1.0)
    made.param_groups[0]["lr"] = "much"
    with pytest.raises(TypeError, match="lr must be a number") as raised:
        made.step()
    assert raised.value.__notes__[-1].startswith("The sums of gradients stay")
    assert made.last_step is not None
    assert made.last_step.reason == "2 of 2 gradients are summed up"
    made.param_groups[0]["lr"] = 1.0
    made.step()
    assert param.item() == -2.0


def test_passes_without_gradients_are_counted_anew() -> None:
    param = torch.nn.Parameter(torch.zeros(1))
    made = optim.SGD([param], lr=1.0, accumulate=2)
    made.step(), made.step()
    for _ in range(2):
        given([param], 1.0)
        made.step()
    assert param.item() == -2.0


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("face", [optim.Adam, optim.tensorflow.Adam])
def test_the_last_step_is_that_which_was_taken(face: Any, steps: int) -> None:
    param: Any = torch.nn.Parameter(torch.zeros(3))
    made = face([param], lr=1.0)
    for _ in range(steps):
        given([param], 1.0)
        made.step()
    param.constraint = failing
    given([param], 1.0)
    with pytest.raises(ValueError, match="burnt"):
        made.step()
    assert (made.last_step.taken, made.last_step.count) == (True, steps + 1)
    assert made.state[param]["step"].item() == steps + 1


def averaged() -> tuple[Any, Any]:
    param = torch.nn.Parameter(torch.zeros(3))
    made = optim.SGD([param], lr=1.0, ema_decay=0.5)
    for _ in range(2):
        given([param], 1.0)
        made.step()
    return made, param


def test_blocks_of_averages_are_not_nested() -> None:
    made, param = averaged()
    with made.swapped():
        with pytest.raises(FailedPreconditionError, match="averages already"), made.swapped():
            pass
        assert torch.equal(param, made.state[param]["ema"])
    assert (param[0].item(), made._cache.holds_averages) == (-2.0, False)
    with ExitStack() as stack:
        stack.enter_context(made.swapped())
        assert torch.equal(param, made.state[param]["ema"])
    assert param[0].item() == -2.0


def test_a_parameter_with_other_memory_has_its_value_back() -> None:
    made, param = averaged()
    with made.swapped():
        param.data = param.data.double()
    assert (param.dtype, param[0].item()) == (torch.float64, -2.0)


def places(name: str) -> Iterator[int]:
    """Some twelve of the instructions of a step."""
    training = TRAININGS[name]()
    for number in range(3):
        training.take(number)
    training.ready(3)
    count = ALL - outcome(ALL, lambda: training.step(3), by_opcode=True)[1]
    yield from range(0, count, max(1, count // 12))


NAMES = [name for name in TRAININGS if name.split()[0] == "optim"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_interrupted_anywhere_is_whole(name: str) -> None:
    ours, twin = TRAININGS[name](), TRAININGS[name]()
    for number in range(3):
        ours.take(number), twin.take(number)
    for number, place in enumerate(places(name), 3):
        ours.ready(number), twin.ready(number)
        before = ours.bits()
        twin.step(number)
        found, _ = outcome(place, lambda number=number: ours.step(number), by_opcode=True)
        assert ours.bits() in (before, twin.bits()), place
        notes = getattr(found, "__notes__", [])
        if NOT_TAKEN in notes:
            assert ours.bits() == before, place
        if any(note.startswith("The step was taken") for note in notes):
            assert ours.bits() == twin.bits(), place
        if found is not None:
            ours.end()
        if ours.bits() != twin.bits():
            ours.step(number)
        assert ours.bits() == twin.bits(), place


ADDING = [name for name in NAMES if name.startswith("optim add")]


@pytest.mark.parametrize("name", ADDING)
def test_a_group_is_added_as_a_whole_or_not_at_all(name: str) -> None:
    ours, twin = TRAININGS[name](), TRAININGS[name]()
    for each in (ours, twin):
        each.take(0), each.ready(1)
    before, number = ours.bits(), 0
    twin.step(1)
    while outcome(number, lambda: ours.step(1))[0] is not None and ours.bits() == before:
        number += 1
    assert ours.bits() == twin.bits(), number
    assert number > 10

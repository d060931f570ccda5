"""Failing and interrupted steps of `thalweg.optim`: atomic, counted and reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from attack.interruptions import TRAININGS, one_rank
from interruptions import outcome
from thalweg import optim
from thalweg.errors import FailedPreconditionError


@pytest.fixture(autouse=True, scope="module")
def no_process_group() -> Iterator[None]:
    """Leave the process group that trainings of DTensors make."""
    yield
    if one_rank.cache_info().currsize:
        torch.distributed.destroy_process_group()
        one_rank.cache_clear()


STEP_NOTE = "The step was not taken: no variable and no slot has changed."
INSTRUCTION_LIMIT = 10**9  # more instructions than a step has


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
def test_interrupted_taken_step_clears_sums(name: str) -> None:
    params: list[Any] = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    opt = MAKERS[name](params)
    for value in (1.0, 1.0, 10.0):
        given(params, value)
        opt.step()
    params[0].constraint = failing
    given(params, 10.0)
    with pytest.raises(ValueError, match="burnt") as raised:
        opt.step()
    assert raised.value.__notes__[0].startswith("The step was taken, but without the constraint")
    assert (params[0].item(), opt.last_step.taken, opt.last_step.count) == (-22.0, True, 2)
    del params[0].constraint
    given(params, 100.0)
    opt.step()
    assert (params[0].item(), opt.last_step.reason) == (-22.0, "1 of 2 gradients are summed up")
    given(params, 100.0)
    opt.step()
    assert params[0].item() == -222.0


def test_interrupted_untaken_step_keeps_and_reports_sums() -> None:
    param = torch.nn.Parameter(torch.zeros(1))
    opt = optim.SGD([param], lr=1.0, accumulate=2)
    given([param], 1.0)
    opt.step()
    given([param], 1.0)
    opt.param_groups[0]["lr"] = "much"
    with pytest.raises(TypeError, match="lr must be a number") as raised:
        opt.step()
    assert raised.value.__notes__[-1].startswith("The sums of gradients stay")
    assert opt.last_step is not None
    assert opt.last_step.reason == "2 of 2 gradients are summed up"
    opt.param_groups[0]["lr"] = 1.0
    opt.step()
    assert param.item() == -2.0


def test_passes_without_gradients_restart_the_count() -> None:
    param = torch.nn.Parameter(torch.zeros(1))
    opt = optim.SGD([param], lr=1.0, accumulate=2)
    opt.step(), opt.step()
    for _ in range(2):
        given([param], 1.0)
        opt.step()
    assert param.item() == -2.0


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("face", [optim.Adam, optim.tensorflow.Adam])
def test_last_step_is_the_last_taken_step(face: Any, steps: int) -> None:
    param: Any = torch.nn.Parameter(torch.zeros(3))
    opt = face([param], lr=1.0)
    for _ in range(steps):
        given([param], 1.0)
        opt.step()
    param.constraint = failing
    given([param], 1.0)
    with pytest.raises(ValueError, match="burnt"):
        opt.step()
    assert (opt.last_step.taken, opt.last_step.count) == (True, steps + 1)
    assert opt.state[param]["step"].item() == steps + 1


def averaged() -> tuple[Any, Any]:
    param = torch.nn.Parameter(torch.zeros(3))
    opt = optim.SGD([param], lr=1.0, ema_decay=0.5)
    for _ in range(2):
        given([param], 1.0)
        opt.step()
    return opt, param


def test_blocks_of_averages_are_not_nested() -> None:
    opt, param = averaged()
    with opt.swapped():
        with pytest.raises(FailedPreconditionError, match="averages already"), opt.swapped():
            pass
        assert torch.equal(param, opt.state[param]["ema"])
    assert (param[0].item(), opt.step_cache.holds_averages) == (-2.0, False)
    with ExitStack() as stack:
        stack.enter_context(opt.swapped())
        assert torch.equal(param, opt.state[param]["ema"])
    assert param[0].item() == -2.0


def test_parameter_with_replaced_memory_is_restored() -> None:
    opt, param = averaged()
    with opt.swapped():
        param.data = param.data.double()
    assert (param.dtype, param[0].item()) == (torch.float64, -2.0)


def places(name: str) -> Iterator[int]:
    """Return about eight instruction numbers of a step."""
    run = TRAININGS[name]()
    for number in range(3):
        run.take(number)
    run.ready(3)
    count = INSTRUCTION_LIMIT - outcome(INSTRUCTION_LIMIT, lambda: run.step(3), by_opcode=True)[1]
    yield from range(0, count, max(1, count // 8))


NAMES = [name for name in TRAININGS if name.split()[0] == "optim"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(7)
def test_interrupted_steps_are_atomic(name: str) -> None:
    run, twin = TRAININGS[name](), TRAININGS[name]()
    for number in range(3):
        run.take(number), twin.take(number)
    for number, place in enumerate(places(name), 3):
        run.ready(number), twin.ready(number)
        previous = run.bits()
        twin.step(number)
        result_bits, _ = outcome(place, lambda number=number: run.step(number), by_opcode=True)
        assert run.bits() in (previous, twin.bits()), place
        notes = getattr(result_bits, "__notes__", [])
        if STEP_NOTE in notes:
            assert run.bits() == previous, place
        if any(note.startswith("The step was taken") for note in notes):
            assert run.bits() == twin.bits(), place
        if result_bits is not None:
            run.end()
        if run.bits() != twin.bits():
            run.step(number)
        assert run.bits() == twin.bits(), place


ADDING = [name for name in NAMES if name.startswith("optim add")]


@pytest.mark.parametrize("name", ADDING)
def test_interrupted_add_param_group_is_atomic(name: str) -> None:
    run, twin = TRAININGS[name](), TRAININGS[name]()
    for side in (run, twin):
        side.take(0), side.ready(1)
    previous, number = run.bits(), 0
    twin.step(1)
    while outcome(number, lambda: run.step(1))[0] is not None and run.bits() == previous:
        number += 3
    assert run.bits() == twin.bits(), number
    assert number > 10

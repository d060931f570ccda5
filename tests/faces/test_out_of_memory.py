"""Memory runs out while an optimizer makes what it remembers: nothing is half made."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from allocations import Failing
from attack.states import same
from resumed import FACES, OfAverages, copy_everything, normal

STRIDE = 7  # of so many trainings of a face one is tried in each run of the tests
every_training = pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=f"{face}-{name}", marks=[pytest.mark.slow] if place % STRIDE else [])
        for face, makers in FACES.items()
        for place, (name, make) in enumerate(makers.items())
        if name != "averages"
    ],
)
pytestmark = pytest.mark.filterwarnings('ignore:dtype is "mixed", but nothing')


def titles(training: Any) -> list[str]:
    """The names of all variables that an optimizer has."""
    opt = training.training.step.optimizer if hasattr(training, "training") else training.optimizer
    return [var.name for var in opt.variables()]


def was_taken(error: BaseException) -> bool:
    return any(note.startswith("The step was taken") for note in getattr(error, "__notes__", ()))


def values(training: Any) -> dict[str, Any]:
    return {key: var.detach().clone() for key, var in training.variables().items()}


@every_training
@pytest.mark.one_in(7)
def test_failed_first_allocation_can_be_retried(make: Callable[..., Any]) -> None:
    undisturbed = make()
    undisturbed.step(0), undisturbed.step(1)
    expected = copy_everything(undisturbed)
    failed = 0
    for number in itertools.count():
        training = make()
        initial = values(training)
        try:
            with Failing(number) as memory:
                training.step(0)
        except MemoryError as error:
            if was_taken(error):  # what a wrapper does beside it was not done
                assert not same(values(training), initial)
                training.step(1), training.load(training.state(), 2)
                continue
            failed += 1
            assert same(values(training), initial), f"allocation {number}"
            training.step(0)
        training.step(1)
        assert same(copy_everything(training), expected), f"allocation {number}"
        assert titles(training) == titles(undisturbed), f"allocation {number}"
        if memory.remaining >= 0:
            break
    assert failed > 3


def test_averages_begin_after_a_failed_allocation() -> None:
    undisturbed = OfAverages()
    undisturbed.step(0), undisturbed.step(1)
    for number in itertools.count():
        training = OfAverages()
        for place, var in enumerate(training.own.values()):
            var.assign(normal(tuple(var.shape), place))
        with contextlib.suppress(MemoryError), Failing(number) as memory:
            training.averages.apply(training.own.values())
        if memory.remaining < 0:
            assert training.state() == {}
        training.averages = training.averages if memory.remaining < 0 else OfAverages().averages
        training.step(0), training.step(1)
        assert same(training.state(), undisturbed.state())
        if memory.remaining >= 0:
            break
    assert number > 3


@every_training
@pytest.mark.one_in(3)
def test_failed_allocation_does_not_load_the_state(make: Callable[..., Any]) -> None:
    training = make()
    training.step(0), training.step(1)
    state = training.state()
    for number in itertools.count():
        new_training = make()
        initial = values(new_training)
        try:
            with Failing(number) as memory:
                new_training.load(state, 1)
        except MemoryError:
            assert same(values(new_training), initial), f"allocation {number}"
            new_training.load(state, 1)
        assert same(new_training.state(), state), f"allocation {number}"
        if memory.remaining >= 0:
            break
    assert number or not state

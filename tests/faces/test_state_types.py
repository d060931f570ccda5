"""States of every front end hold plain types and keep all bits and dtypes through a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attack.states import same
from files import through_a_file
from resumed import FACES

MAKERS = {f"{face}-{name}": make for face, makers in FACES.items() for name, make in makers.items()}
every_training = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
PLAIN_TYPES = {Tensor, str, int, float, bool, type(None)}
pytestmark = pytest.mark.filterwarnings('ignore:dtype is "mixed", but nothing')


def types(value: Any) -> set[type]:
    """Return the types of all leaves; containers of other classes are leaves."""
    if type(value) is dict:
        return types([*value.keys(), *value.values()])
    if type(value) in (list, tuple):
        return set().union(*map(types, value))
    return {type(value)}


@pytest.mark.one_in(3)
@every_training
def test_a_state_is_of_plain_types_and_keeps_all_bits_and_dtypes(make: Callable[..., Any]) -> None:
    training, new_training = make(), make()
    training.step(0), training.step(1)
    state = training.state()
    assert types(state) <= PLAIN_TYPES
    read = through_a_file(state)
    assert same(read, state)
    with torch.no_grad():
        for key, var in new_training.variables().items():
            var.copy_(training.variables()[key])
    new_training.load(read, 1)
    assert same(new_training.state(), state)


@pytest.mark.one_in(3)
@every_training
def test_a_state_shares_no_memory(make: Callable[..., Any]) -> None:
    training = make()
    training.step(0)
    state = training.state()
    state_copy = through_a_file(state)
    training.step(1)
    assert same(state, state_copy)

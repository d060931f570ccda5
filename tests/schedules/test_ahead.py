"""Learning rates that are computed for several steps at a time."""

from __future__ import annotations

import random

import numpy as np
import pytest

from thalweg import schedules
from thalweg.schedules.ahead import RatesAhead


def test_rates_ahead_are_correct_in_any_order() -> None:
    formula = schedules.ExponentialDecay(0.1, 7, 0.9).formula
    ahead, dice = RatesAhead(formula), random.Random(0)
    steps = [*range(200), *(dice.randrange(300) for _ in range(200)), *range(90, 160)]
    for step in steps:
        assert ahead.at(step) == formula(step)


def test_consecutive_steps_are_computed_together() -> None:
    computed: list[int] = []
    ahead = RatesAhead(lambda step: computed.append(step) or step)
    for step in range(1000):
        assert ahead.at(step) == step
        assert len(computed) <= step + 32
    assert sorted(computed) == list(range(len(computed)))


def test_a_repeated_rate_is_computed_alone() -> None:
    computed: list[int] = []
    ahead = RatesAhead(lambda step: computed.append(step) or step)
    for step in (5, 90, 3, 70):
        assert ahead.at(step) == step
    assert computed == [5, 90, 3, 70]


def test_error_is_raised_at_its_own_step() -> None:
    def rate_at(step: int) -> np.float32:
        if step == 20:
            raise ValueError("no rate")
        return np.float32(step)

    ahead = RatesAhead(rate_at)
    for step in range(20):
        assert ahead.at(step) == step
    with pytest.raises(ValueError, match="no rate"):
        ahead.at(20)
    assert ahead.at(21) == 21

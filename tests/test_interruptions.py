"""Steps interrupted at random moments: each is taken as a whole or not at all, and says so."""

from __future__ import annotations

import pytest

from attack.interruptions import KINDS, TRAININGS, WRONG, told

SEED = 0


@pytest.mark.parametrize("count", [1, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(TRAININGS))
def test_an_interrupted_step_is_whole_and_its_notes_are_true(name: str, count: int) -> None:
    found, said = told(name, ",".join(KINDS), count, SEED, timeout=120)
    assert not set(found) & set(WRONG), said
    assert sum(found.values()) == count * len(KINDS), said

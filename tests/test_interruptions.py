"""Steps interrupted at random moments: each is taken as a whole or not at all, and says so."""

from __future__ import annotations

import pytest

from attack.interruptions import KINDS, TRAININGS, WRONG, told

SEED, COUNT = 0, 10


@pytest.mark.parametrize("name", list(TRAININGS))
def test_an_interrupted_step_is_whole_and_its_notes_are_true(name: str) -> None:
    found, said = told(name, ",".join(KINDS), COUNT, SEED, timeout=120)
    assert not set(found) & set(WRONG), said
    assert sum(found.values()) == COUNT * len(KINDS), said

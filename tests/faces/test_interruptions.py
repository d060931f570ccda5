"""Steps interrupted at random moments: each is taken as a whole or not at all, and says so."""

from __future__ import annotations

import pytest

from attack.interruptions import KINDS, PARTS, TRAININGS, WRONG, told

SEED = 0


def check(names: str, count: int) -> None:
    found, said = told(names, ",".join(KINDS), count, SEED, timeout=280)
    assert not set(found) & set(WRONG), said
    assert sum(found.values()) == count * len(KINDS) * len(names.split(",")), said


def test_an_interrupted_step_is_whole_and_its_notes_are_true() -> None:
    check(",".join(TRAININGS), 1)


@pytest.mark.slow
@pytest.mark.parametrize("names", PARTS)
def test_many_interrupted_steps_are_whole(names: str) -> None:
    check(names, 10)

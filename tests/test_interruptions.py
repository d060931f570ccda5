"""Steps interrupted at random moments: each is taken as a whole or not at all, and says so."""

from __future__ import annotations

import pytest

from attack.interruptions import KINDS, TRAININGS, WRONG, told

SEED = 0


def check(names: list[str], count: int) -> None:
    found, said = told(",".join(names), ",".join(KINDS), count, SEED, timeout=280)
    assert not set(found) & set(WRONG), said
    assert sum(found.values()) == count * len(KINDS) * len(names), said


def test_an_interrupted_step_is_whole_and_its_notes_are_true() -> None:
    check(list(TRAININGS), 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_many_interrupted_steps_are_whole(name: str) -> None:
    check([name], 10)

"""Steps interrupted at random moments: each is taken as a whole or not at all, and says so.

`tests/attack/test_attacks.py` interrupts 120 steps of each training, with the same seed.
"""

from __future__ import annotations

from attack.interruptions import KINDS, TRAININGS, WRONG, run_interrupted

SEED = 0


def test_interrupted_step_is_atomic_and_notes_are_true() -> None:
    counts, output = run_interrupted(",".join(TRAININGS), ",".join(KINDS), 1, SEED, timeout=280)
    assert not set(counts) & set(WRONG), output
    assert sum(counts.values()) == len(KINDS) * len(TRAININGS), output

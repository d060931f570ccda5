"""Steps interrupted at random moments: each is taken as a whole or not at all, and says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from interruptions import TRAININGS, WRONG

PROGRAM = Path(__file__).with_name("interruptions.py")
SEED = "0"

each_training = pytest.mark.parametrize("name", list(TRAININGS))
each_kind = pytest.mark.parametrize("how", ["signal", "exception"])


def assert_whole(name: str, how: str, count: int, timeout: float) -> None:
    """Interrupt so many steps in a process of their own; fail with all that it tells."""
    command = [sys.executable, str(PROGRAM), name, how, str(count), SEED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    told = f"{command}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, told
    found = json.loads(done.stdout)
    assert not set(found) & set(WRONG), told
    assert sum(found.values()) == count * len(how.split(",")), told


@each_training
def test_an_interrupted_step_is_whole_and_its_notes_are_true(name: str) -> None:
    assert_whole(name, "signal,exception", 10, timeout=120)


@pytest.mark.slow
@each_kind
@each_training
def test_of_thousands_of_interrupted_steps_none_is_torn(name: str, how: str) -> None:
    assert_whole(name, how, 170, timeout=280)

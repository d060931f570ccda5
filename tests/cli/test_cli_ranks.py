"""`thalweg race --nproc 2`: processes that share each batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed"),
]

RACE = ("race", "--epochs", "1", "--json")
LATE = """
from thalweg.keras.optimizers import SGD

class Late(SGD):
    def _create_slots(self, var_list):
        raise KeyError("too late")

def late():
    return Late(0.1)
"""


def ran(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "thalweg", *arguments],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_race_on_ranks_equals_race_on_one_process(tmp_path: Path) -> None:
    names = ("--optimizers", "Adam,v1:MomentumOptimizer")
    for count in "12":
        (tmp_path / count).mkdir()
    first, two = (
        ran(tmp_path, *RACE, *names, "--nproc", count, "--out", count) for count in ("1", "2")
    )
    assert (first.returncode, two.returncode) == (0, 0), first.stderr + two.stderr
    races = {row["settings"]["ranks"]: row for row in map(json.loads, (first.stdout, two.stdout))}
    assert set(races) == {1, 2}
    assert json.loads((tmp_path / "2" / "race.json").read_text()) == races[2]
    losses = [
        {row["optimizer"]: row["losses"] for row in races[count]["results"]} for count in (1, 2)
    ]
    for name, expected in losses[0].items():
        assert losses[1][name] == pytest.approx(expected, rel=1e-3)
        assert expected[-1] < 0.9 * expected[0]


def test_errors_of_a_rank_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    process = ran(tmp_path, *RACE, "--nproc", "2", "--optimizers", "late.py:late")
    assert process.returncode == 1
    (line,) = process.stderr.strip().splitlines()
    assert line == "Error: late failed at step 1: 'too late'"


def test_more_ranks_than_batch_examples_fail(tmp_path: Path) -> None:
    process = ran(tmp_path, *RACE, "--nproc", "33")
    assert process.returncode == 2
    assert "32" in process.stderr

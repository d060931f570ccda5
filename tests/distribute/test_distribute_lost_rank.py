"""A rank that is killed, stopped, raises or ends: the others raise in time, at a whole step."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

import lost_cases
from fresh_process import Fresh
from lost_cases import LOST_STEP, TIMEOUT
from thalweg import Variable
from thalweg.keras.optimizers import Adam

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="torch without torch.distributed"
)

FAULTS, MOMENTS = ("kill", "stop", "raise", "exit"), ("before", "during", "after")
CASES = [f"{fault}-{moment}" for fault, moment in itertools.product(FAULTS, MOMENTS)]
QUICK = ("kill-during", "stop-before", "raise-during", "exit-after")


def after(steps: int) -> dict[str, Any]:
    """Return the result of one process after some steps with the gradients of both ranks."""
    w, opt = Variable(torch.zeros(1), name="w"), Adam(0.1)
    for _ in range(steps):
        opt.apply_gradients([(torch.full((1,), 2.0), w)])
    slots = [float(slot.flatten()[0]) for slot in opt.weights[1:]]
    return {"first": w[0].item(), "slots": slots}


def told_by_survivor(case: str, folder: Path) -> dict[str, Any]:
    script, arguments = Path(lost_cases.__file__), (str(folder / "store"), "2", case)
    with Fresh(script, "0", *arguments) as first, Fresh(script, "1", *arguments):
        process = first.done()
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_survivors_raise_before_timeout_at_a_complete_step(case: str, tmp_path: Path) -> None:
    report = told_by_survivor(case, tmp_path)
    steps = LOST_STEP if case.endswith("after") else LOST_STEP - 1
    assert report["steps"] == steps
    assert report["alike"]
    assert {name: report[name] for name in ("first", "slots")} == after(steps)
    assert report["seconds"] < TIMEOUT + 2
    message = report["message"]
    assert message.startswith("rank 1 did not answer rank 0 within 3 s: ")
    assert f"In step {steps + 1} " in message
    assert message.endswith(f"variables are as after step {steps}.")
    assert report["again"].startswith("rank 1 did not answer rank 0")


SHARED = [f"{fault}-{moment}" for fault, moment in itertools.product(FAULTS, (*MOMENTS, "joining"))]
QUICK_SHARED = ("kill-joining", "raise-before")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in QUICK_SHARED else pytest.mark.slow) for case in SHARED],
)
def test_lost_sharded_slots_stop_training(case: str, tmp_path: Path) -> None:
    report = told_by_survivor(f"{case}-shared", tmp_path)
    message, is_torn = report["message"], case.endswith("joining")
    last_step = LOST_STEP if case.endswith("after") else LOST_STEP - 1
    assert report["seconds"] < TIMEOUT + 2
    assert message.startswith("rank 1 did not answer rank 0 within 3 s: ")
    if is_torn:
        steps = f"parts of them as after step {LOST_STEP} and parts as after step {LOST_STEP - 1}"
        assert f"mixed: {steps}" in message
        assert not report["alike"]
    else:
        assert f"variables are as after step {last_step} here, and may be mixed" in message
        assert report["alike"]
        assert report["steps"] == last_step
    assert message.endswith(f"Start again from the last checkpoint, {report['saved']}.")
    for error in (report["again"], report["save"]):
        assert "no step can be taken and no state saved any more" in error
        assert ("may be mixed: parts" in error) == is_torn

"""Steps that measure DTensors: ranks that differ raise together, and nothing has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import distributed

import guard_cases
from guard_cases import AT, LOST, OPTIMIZERS, TIMEOUT
from parallel_workers import run_ranks

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="torch without torch.distributed"
)

FIRST = "'parameter 0 of group 0'"
# What is said on all ranks when the last one differs; the rate of Prodigy is 1.
DIFFERENT = {
    "shape": f"at the gradient of {FIRST}: none vs float32.",
    "nograd": f"at the gradient of {FIRST}: none vs float32.",
    "lr": "at lr of group 0: 0.5 vs ",
    "slotgone": f"at the state of {FIRST}: ",
    "fewer": "at the number of DTensors: 3 vs 4.",
    "order": f"at {FIRST}: ",
    "found_inf": "at what the scaler found: 1.0 vs None.",
}
OTHERS = ("cut", "nan")
OF_TENSORFLOW = {
    "Keras": {"shape": "at the gradient of 'Variable:0", "lr": "at learning_rate: 0.5 vs 0.0"},
    "v1": {"shape": "at the number of DTensors: 3 vs 4."},  # gradients that are None are left out
}
QUICK = {
    2: ["shape:AdamW", "cut:AdamW", "nograd:LAMB", "lr:Mixed", "nan:plain", "save:Keras"],
}
Found = list[dict[str, Any]]


def cases(count: int) -> list[str]:
    """All cases for a number of ranks."""
    torchs = [name for name in OPTIMIZERS if name not in (*OF_TENSORFLOW, "grid", "plain")]
    found = [f"{case}:{name}" for name in torchs for case in (*DIFFERENT, *OTHERS)]
    found = [each for each in found if each != "slotgone:SGD"]
    lost = ("AdamW", "Mixed", "LAMB") if count == 2 else ("AdamW",)
    found += [f"{case}:{name}" for name in lost for case in LOST]
    found += [f"{case}:{name}" for name, own in OF_TENSORFLOW.items() for case in (*own, "cut")]
    if count == 4:
        return [f"{case}:grid" for case in (*DIFFERENT, *OTHERS, *LOST)]
    return [*found, "nan:plain", "save:Keras"]


@pytest.fixture(
    scope="module",
    params=[
        (2, "replay"),
        *(pytest.param((count, "all"), marks=pytest.mark.slow) for count in (2, 3, 4)),
    ],
    ids=lambda given: f"{given[0]}-{given[1]}",
)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    count, part = request.param
    names = QUICK[count] if part == "replay" else cases(count)
    folder = tmp_path_factory.mktemp("guarded")
    return run_ranks(Path(guard_cases.__file__), folder, count, *names)


def test_ranks_raise_together_and_nothing_changes(told: Found) -> None:
    for key in told[0]:
        case, name = key.split(":")
        check = CHECKS.get(case, check_difference)
        check(case, name, [each[key] for each in told])


def check_difference(case: str, name: str, found: Found) -> None:
    last = len(found) - 1
    words = OF_TENSORFLOW.get(name, DIFFERENT)[case]
    if name == "Mixed" and case == "order":
        words = f"at {FIRST}: "
    for rank, each in enumerate(found):
        assert words in each["said"], (name, case, each)
        assert each["said"].startswith(f"ReplicaMismatchError: rank {last} disagrees with rank ")
        check_unchanged(each, is_whole=case != "slotgone" or rank != last)
        assert each.get("after", AT + 1) == AT + 1


def check_unchanged(found: dict[str, Any], is_whole: bool = True) -> None:
    assert "The step was not taken: no variable and no slot has changed." in found["notes"], found
    assert found["unchanged"] == is_whole, found


def check_cut(case: str, name: str, found: Found) -> None:
    *others, own = found
    # Torch cuts a gradient that is placed otherwise, before anybody sees its memory.
    error = "RuntimeError: setStorage" if name == "misplaced" else "LayoutError: The gradient of "
    assert own["said"].startswith(error), (name, own)
    check_unchanged(own)
    for each in others:
        assert f"rank {len(others)} raised an error in its step: {error}" in each["said"], name
        check_unchanged(each)


def check_raise(case: str, name: str, found: Found) -> None:
    *others, own = found
    assert own["said"] == "ValueError: mine"
    check_unchanged(own)
    for each in others:
        check_lost(each, name)


def check_lost(found: dict[str, Any], name: str) -> None:
    assert found["said"].startswith("ReplicaLostError: "), (name, found)
    assert found["seconds"] < TIMEOUT + 30  # on a busy machine
    check_unchanged(found)


def check_skip(case: str, name: str, found: Found) -> None:
    *others, own = found
    assert own["said"] == "skipped"
    for each in others:
        check_lost(each, name)


def check_extra(case: str, name: str, found: Found) -> None:
    *others, own = found
    assert own["said"].startswith("ReplicaLostError: "), (name, own)
    for each in others:
        assert each["said"] == "stepped"


def check_nan(case: str, name: str, found: Found) -> None:
    for each in found:
        assert each["said"] == "stepped", (name, each)
        if name == "plain":
            assert each["messages"] == 0
        elif name == "SGD":
            assert each["messages"] == 2  # before the measure, and before the writes


def check_save(case: str, name: str, found: Found) -> None:
    *others, own = found
    assert own["said"].startswith("LayoutError: ")
    for each in others:
        assert f"rank {len(others)} raised an error before its state was there" in each["said"]


CHECKS = {
    "cut": check_cut,
    "raise": check_raise,
    "skip": check_skip,
    "extra": check_extra,
    "nan": check_nan,
    "save": check_save,
}

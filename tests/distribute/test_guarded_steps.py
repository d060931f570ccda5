"""Steps that measure DTensors: ranks that differ raise together, and nothing has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import distributed

import guard_cases
from guard_cases import FAULT_STEP, ON_GRID, OPTIMIZERS, TIMEOUT, TIMEOUT_CASES
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
OTHER_CASES = ("cut", "nan")
OF_TENSORFLOW = {
    "Keras": {"shape": "at the gradient of 'Variable:0", "lr": "at learning_rate: 0.5 vs 0.0"},
    "v1": {"shape": "at the number of DTensors: 3 vs 4."},  # gradients that are None are left out
}
QUICK = {
    2: ["shape:AdamW", "cut:AdamW", "nograd:LAMB", "lr:Mixed", "nan:plain", "save:Keras"],
}
Reports = list[dict[str, Any]]


def cases(count: int) -> list[str]:
    """Return the cases of a number of ranks; 2 and 3 share those in which no rank is lost."""
    torchs = [name for name in OPTIMIZERS if name not in (*OF_TENSORFLOW, *ON_GRID, "plain")]
    names = [f"{case}:{name}" for name in torchs for case in (*DIFFERENT, *OTHER_CASES)]
    names = [case_name for case_name in names[count % 2 :: 2] if case_name != "slotgone:SGD"]
    lost_names = ("AdamW", "Mixed", "LAMB") if count == 2 else ("AdamW",)
    names += [f"{case}:{name}" for name in lost_names for case in TIMEOUT_CASES]
    names += [f"{case}:{name}" for name, cases in OF_TENSORFLOW.items() for case in (*cases, "cut")]
    if count == 4:
        grid_cases = *DIFFERENT, *OTHER_CASES, *TIMEOUT_CASES
        return [f"{case}:{name}" for name in ON_GRID for case in grid_cases]
    return [*names, "nan:plain", "save:Keras"]


@pytest.fixture(
    scope="module",
    params=[
        (2, "replay"),
        *(pytest.param((count, "all"), marks=pytest.mark.slow) for count in (2, 3, 4)),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    count, part = request.param
    names = QUICK[count] if part == "replay" else cases(count)
    folder = tmp_path_factory.mktemp("guarded")
    return run_ranks(Path(guard_cases.__file__), folder, count, *names)


def test_all_ranks_raise_and_change_nothing(reports: Reports) -> None:
    for key in reports[0]:
        case, name = key.split(":")
        check = CHECKS.get(case, check_difference)
        check(case, name, [report[key] for report in reports])


def check_difference(case: str, name: str, reports: Reports) -> None:
    bad = len(reports) - 1
    words = OF_TENSORFLOW.get(name, DIFFERENT)[case]
    if name == "Mixed" and case == "order":
        words = f"at {FIRST}: "
    for rank, report in enumerate(reports):
        assert words in report["said"], (name, case, report)
        assert report["said"].startswith(f"ReplicaMismatchError: rank {bad} disagrees with rank ")
        check_unchanged(report, expected=case != "slotgone" or rank != bad)
        assert report.get("after", FAULT_STEP + 1) == FAULT_STEP + 1


def check_unchanged(report: dict[str, Any], expected: bool = True) -> None:
    assert "The step was not taken: no variable and no slot has changed." in report["notes"], report
    assert report["unchanged"] == expected, report


def check_cut(case: str, name: str, reports: Reports) -> None:
    *peers, failing = reports
    # Torch cuts a gradient that is placed otherwise, before anybody sees its memory.
    error = "RuntimeError: setStorage" if name == "misplaced" else "LayoutError: The gradient of "
    assert failing["said"].startswith(error), (name, failing)
    check_unchanged(failing)
    for peer in peers:
        assert f"rank {len(peers)} raised an error in its step: {error}" in peer["said"], name
        check_unchanged(peer)


def check_raise(case: str, name: str, reports: Reports) -> None:
    *peers, failing = reports
    assert failing["said"] == "ValueError: mine"
    check_unchanged(failing)
    for peer in peers:
        check_lost(peer, name)


def check_lost(report: dict[str, Any], name: str) -> None:
    assert report["said"].startswith("ReplicaLostError: "), (name, report)
    assert report["seconds"] < TIMEOUT + 30  # on a busy machine
    check_unchanged(report)


def check_skip(case: str, name: str, reports: Reports) -> None:
    *peers, failing = reports
    assert failing["said"] == "skipped"
    for peer in peers:
        check_lost(peer, name)


def check_extra(case: str, name: str, reports: Reports) -> None:
    *peers, failing = reports
    assert failing["said"].startswith("ReplicaLostError: "), (name, failing)
    for peer in peers:
        assert peer["said"] == "stepped"


def check_nan(case: str, name: str, reports: Reports) -> None:
    for report in reports:
        assert report["said"] == "stepped", (name, report)
        if name == "plain":
            assert report["messages"] == 0
        elif name == "SGD":
            assert report["messages"] == 2  # before the measure, and before the writes


def check_save(case: str, name: str, reports: Reports) -> None:
    *peers, failing = reports
    assert failing["said"].startswith("LayoutError: ")
    for peer in peers:
        assert f"rank {len(peers)} raised an error before its state was there" in peer["said"]


CHECKS = {
    "cut": check_cut,
    "raise": check_raise,
    "skip": check_skip,
    "extra": check_extra,
    "nan": check_nan,
    "save": check_save,
}

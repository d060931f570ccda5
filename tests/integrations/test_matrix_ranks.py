"""Rules with stages over matrices in parts; `matrix_rank_cases` runs on each rank."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from fresh_process import Fresh
from parallel_workers import run_ranks_once, shared_folder

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="torch without torch.distributed"
)

SCRIPT = Path(__file__).with_name("matrix_rank_cases.py")
CASES = (
    "trained", "of_fully_shard", "in_trouble", "of_many_dimensions", "messages", "of_strategies",
)  # fmt: skip
NAMES = (
    "Muon", "Muon heads", "Muon clipped", "NorMuon", "NorMuon averaged", "AdaMuon", "MuonH", "SOAP",
    "KLSOAP", "SOAP of many types", "SOAP heads", "a rule", "random numbers", "two stages",
    "a rule in Mixed", "Mixed clipped",
)  # fmt: skip
BOUND = 1e-5  # of the largest number of each tensor: others of a batch change the order of sums
Reports = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[2, pytest.param(1, marks=pytest.mark.slow),
                                        pytest.param(4, marks=pytest.mark.slow)])  # fmt: skip
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    folder = shared_folder(request.config, tmp_path_factory, f"matrices-{request.param}")
    return run_ranks_once(folder, SCRIPT, request.param, str(folder), *CASES)


@pytest.mark.parametrize("name", NAMES)
def test_sharded_matrices_equal_whole_ones(name: str, reports: Reports) -> None:
    for report in reports:
        outcome = report["trained"][name]
        assert outcome["params"] <= BOUND
        assert outcome["state"] <= BOUND
        assert outcome["shapes"]
        assert outcome["moved"] > 1e-2
        assert outcome["count"] == 5
        assert outcome["copies"] == reports[0]["trained"][name]["copies"]


@pytest.mark.parametrize("name", NAMES)
def test_state_of_each_rank_is_a_fraction(name: str, reports: Reports) -> None:
    for report in reports:
        outcome = report["trained"][name]
        assert outcome["has"] <= outcome["all"] * (1 / len(reports) + 0.25)


@pytest.mark.parametrize("kind", ["Muon", "NorMuon", "SOAP"])
def test_fully_shard_state_resumes_on_other_meshes(kind: str, reports: Reports) -> None:
    """Load by torch's checkpoints on as many ranks, by a full state there and in one process."""
    for report in reports:
        assert all(distance <= BOUND for distance in report["of_fully_shard"][kind].values())


@pytest.mark.parametrize("name", ["alone", "mixed", "mixed before"])
def test_a_step_that_fails_on_one_rank_fails_on_all(name: str, reports: Reports) -> None:
    *peers, failing = (report["in_trouble"][name] for report in reports)
    assert failing["stage"].startswith("ArithmeticError: no eigenvectors | This is Stage")
    assert failing["interrupted"].startswith("KeyboardInterrupt: Ctrl-C")
    assert failing["state"].startswith("InvalidArgumentError: 'parameter ")
    for peer in peers:
        raised = "ReplicaMismatchError: rank \\d raised an error in its step: "
        for case, error in (("stage", "Arith"), ("interrupted", "Keyb"), ("state", "InvalidArg")):
            assert peer[case].startswith(raised.replace("\\d", str(len(reports) - 1)) + error)
            assert "Nothing has changed on any rank." in peer[case]
        assert peer["lacking"].startswith(
            f"ReplicaMismatchError: rank {len(reports) - 1} disagrees with rank 0 at the gradient"
        )
        assert ": none vs float32." in peer["lacking"]
    for outcome in (*peers, failing):
        for case in ("stage", "interrupted", "state"):
            assert outcome[case].endswith(
                "The step was not taken: no variable and no slot has changed."
            )
        assert outcome["unchanged"] == ("True" if peers else "False")  # one takes what it is given
        assert outcome["after"] == ("2" if peers else "3")


def test_shards_of_several_dimensions_and_meshes_step(reports: Reports) -> None:
    for report in reports:
        outcome = report["of_many_dimensions"]
        assert max(outcome["Muon"], outcome["SOAP"]) <= BOUND
        for case in ("both", "meshes", "rules"):
            assert outcome[case] == ["", True]
        assert "each placement must be Shard or Replicate" in outcome["pending"]
        assert "optimizers of thalweg.optim have those gathered, and no others" in outcome["keras"]
        assert all(outcome["unmoved"])


def test_stage_between_intervals_sends_nothing(reports: Reports) -> None:
    assert all(report["messages"]["sent"] == [2, 2, 2, 4, 4] for report in reports)
    runs = torch.tensor([report["messages"]["called"] for report in reports])
    # Each sharded matrix on one rank; one with a copy on each rank, and a full one, on all ranks.
    calls = 7 + 2 * len(reports)
    assert runs.sum(0).tolist() == [calls] * 3 + [2 * calls] * 2
    for report in reports:  # what a stage has is there for the next one
        assert report["messages"]["twice"][2] == 0
        assert report["messages"]["left out"] == [False, 0]
    assert all(report["messages"]["looked"] <= BOUND for report in reports)
    assert all("is for matrices, of two dimensions" in row["messages"]["vector"] for row in reports)


def test_matrix_rules_under_a_strategy_need_whole_slots(reports: Reports) -> None:
    for report in reports:
        outcome = report["of_strategies"]
        assert outcome["False"] == ["", True, False]
        message, _, is_intact = outcome["True"]
        if len(reports) > 1:
            assert "of which no rank has the slots where they are shared out: 'w:0'" in message
            assert is_intact


@pytest.mark.parametrize("index", [1, 2])
def test_lost_rank_leaves_other_ranks_unchanged(index: int, tmp_path: Path) -> None:
    arguments = str(tmp_path / "store"), "2", str(tmp_path), f"killed {index}"
    with Fresh(SCRIPT, "0", *arguments) as first, Fresh(SCRIPT, "1", *arguments):
        process = first.done()
    assert process.returncode == 0, process.stderr
    message, *notes, is_intact = json.loads(process.stdout.splitlines()[-1])
    assert message.startswith("rank 1 did not answer rank 0")
    assert "The step was not taken: no variable and no slot has changed." in notes
    assert is_intact


def test_work_is_spread_evenly() -> None:
    from thalweg.distribute.sharding.matrix_owners import assign_owners

    draw = random.Random(0)
    for count in (1, 2, 3, 8):
        sides = [(draw.choice((64, 128, 256)), draw.choice((64, 512))) for _ in range(40)]
        work = [rows * columns * min(rows, columns) for rows, columns in sides]
        owners = assign_owners(work, [range(count)] * len(sides))
        loads = [0] * count
        for cost, owner in zip(work, owners, strict=True):
            loads[owner] += cost
        assert max(loads) <= 1.25 * sum(loads) / count

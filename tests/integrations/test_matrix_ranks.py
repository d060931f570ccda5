"""Rules with stages over matrices that ranks have parts of; what they do is in its cases."""

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
    "Muon", "Muon heads", "Muon clipped", "NorMuon", "NorMuon averaged", "MuonH", "SOAP", "KLSOAP",
    "SOAP of many types", "SOAP heads", "a rule", "two stages", "a rule in Mixed", "Mixed clipped",
)  # fmt: skip
BOUND = 1e-5  # of the largest number of each tensor: others of a batch change the order of sums
Told = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[2, pytest.param(1, marks=pytest.mark.slow),
                                        pytest.param(4, marks=pytest.mark.slow)])  # fmt: skip
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = shared_folder(request.config, tmp_path_factory, f"matrices-{request.param}")
    return run_ranks_once(folder, SCRIPT, request.param, str(folder), *CASES)


@pytest.mark.parametrize("name", NAMES)
def test_matrices_in_parts_have_the_numbers_of_whole_ones(name: str, told: Told) -> None:
    for each in told:
        found = each["trained"][name]
        assert found["params"] <= BOUND
        assert found["state"] <= BOUND
        assert found["shapes"]
        assert found["moved"] > 1e-2
        assert found["count"] == 5
        assert found["copies"] == told[0]["trained"][name]["copies"]


@pytest.mark.parametrize("name", NAMES)
def test_no_rank_keeps_a_whole_state(name: str, told: Told) -> None:
    """A rank has its share, rows that are left over, and what is copied to all."""
    for each in told:
        found = each["trained"][name]
        assert found["has"] <= found["all"] * (1 / len(told) + 0.25)


@pytest.mark.parametrize("kind", ["Muon", "NorMuon", "SOAP"])
def test_parameters_of_fully_shard_go_on_anywhere(kind: str, told: Told) -> None:
    """By torch's checkpoints on as many ranks, by a full state there and in one process."""
    for each in told:
        assert all(found <= BOUND for found in each["of_fully_shard"][kind].values())


@pytest.mark.parametrize("name", ["alone", "mixed", "mixed before"])
def test_a_step_that_fails_on_one_rank_fails_on_all(name: str, told: Told) -> None:
    *others, last = (each["in_trouble"][name] for each in told)
    assert last["stage"].startswith("ArithmeticError: no eigenvectors | This is Stage")
    assert last["interrupted"].startswith("KeyboardInterrupt: Ctrl-C")
    assert last["state"].startswith("InvalidArgumentError: 'parameter ")
    for found in others:
        raised = "ReplicaMismatchError: rank \\d raised an error in its step: "
        for way, error in (("stage", "Arith"), ("interrupted", "Keyb"), ("state", "InvalidArg")):
            assert found[way].startswith(raised.replace("\\d", str(len(told) - 1)) + error)
            assert "Nothing has changed on any rank." in found[way]
        assert found["lacking"].startswith(
            f"ReplicaMismatchError: rank {len(told) - 1} disagrees with rank 0 at the gradient of"
        )
        assert ": none vs float32." in found["lacking"]
    for found in (*others, last):
        for way in ("stage", "interrupted", "state"):
            assert found[way].endswith(
                "The step was not taken: no variable and no slot has changed."
            )
        assert found["unchanged"] == ("True" if others else "False")  # one takes what it is given
        assert found["after"] == ("2" if others else "3")


def test_copies_of_shards_are_taken_and_other_meshes_refused(told: Told) -> None:
    for each in told:
        found = each["of_many_dimensions"]
        assert max(found["Muon"], found["SOAP"]) <= BOUND
        assert "is a DTensor of placements (Shard(dim=0), Shard(dim=1))" in found["both"]
        for way in ("meshes", "rules"):
            assert "under rules with stages are to be cut along one" in found[way]
        assert "optimizers of thalweg.optim have those gathered, and no others" in found["keras"]
        assert all(found["moved"])


def test_a_stage_that_is_not_due_sends_nothing(told: Told) -> None:
    assert all(each["messages"]["sent"] == [2, 2, 2, 4, 4] for each in told)
    runs = torch.tensor([each["messages"]["called"] for each in told])
    # Each matrix on one rank; what is no DTensor on all of them.
    assert runs.sum(0).tolist() == [8 + len(told)] * 3 + [2 * (8 + len(told))] * 2
    for each in told:  # what a stage has is there for the next one
        assert each["messages"]["twice"][2] == 0
        assert each["messages"]["left out"] == [False, 0]
    assert all(each["messages"]["looked"] <= BOUND for each in told)
    assert all("is for matrices, of two dimensions" in each["messages"]["vector"] for each in told)


def test_copies_under_a_strategy_are_updated_everywhere(told: Told) -> None:
    for each in told:
        found = each["of_strategies"]
        assert found["False"] == ["", True, False]
        said, _, is_as_before = found["True"]
        if len(told) > 1:
            assert "of which no rank has the slots where they are shared out: 'w:0'" in said
            assert is_as_before


@pytest.mark.parametrize("at", [1, 2])
def test_a_rank_that_is_lost_leaves_the_others_as_before(at: int, tmp_path: Path) -> None:
    given = str(tmp_path / "store"), "2", str(tmp_path), f"killed {at}"
    with Fresh(SCRIPT, "0", *given) as first, Fresh(SCRIPT, "1", *given):
        done = first.done()
    assert done.returncode == 0, done.stderr
    message, *notes, is_as_before = json.loads(done.stdout.splitlines()[-1])
    assert message.startswith("rank 1 did not answer rank 0")
    assert "The step was not taken: no variable and no slot has changed." in notes
    assert is_as_before


def test_work_is_spread_evenly() -> None:
    from thalweg.distribute.sharding.gathered_matrices import spread

    draw = random.Random(0)
    for count in (1, 2, 3, 8):
        sides = [(draw.choice((64, 128, 256)), draw.choice((64, 512))) for _ in range(40)]
        owners = spread([torch.Size(each) for each in sides], [range(count)] * len(sides))
        loads = [0] * count
        for (rows, columns), owner in zip(sides, owners, strict=True):
            loads[owner] += rows * columns * min(rows, columns)
        assert max(loads) <= 1.25 * sum(loads) / count

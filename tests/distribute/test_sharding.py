"""Slots that ranks share out; `sharding_cases` runs on each rank."""

from __future__ import annotations

import random
from typing import Any

import pytest
from torch import distributed

import sharding_cases
from thalweg._engines.reduction_order import LEAF
from thalweg.distribute.sharding.shards import pieces_of

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="torch without torch.distributed"
)

COUNTS = (2, *(pytest.param(count, marks=pytest.mark.slow) for count in (3, 4)))
ranks = pytest.mark.parametrize("reports", COUNTS, indirect=True)
Reports = list[dict[str, Any]]
KINDS = len(sharding_cases.variables())


@ranks
@pytest.mark.parametrize("name", sharding_cases.OPTIMIZERS)
def test_sharded_variables_and_slots_equal_one_process(reports: Reports, name: str) -> None:
    for report in reports:
        outcome = report["shared_out"][name]
        assert outcome["variables"]
        assert outcome["slots"]
        assert all(outcome["weights"])


@ranks
@pytest.mark.parametrize("name", sharding_cases.OPTIMIZERS)
def test_slot_memory_of_each_rank_is_bounded(reports: Reports, name: str) -> None:
    variables = sharding_cases.variables()
    total_bytes = sum(var.numel() * var.element_size() for var in variables)
    leaf, rounding = LEAF * 4, 64 * len(variables)
    for report in reports:
        outcome = report["shared_out"][name]
        kinds = outcome["kinds of slot"]
        assert outcome["bytes"] <= kinds * (total_bytes / len(reports) + leaf + rounding)


@ranks
def test_sharded_states_are_gathered_and_scattered(reports: Reports) -> None:
    for report in reports:
        outcome = report["saved_and_restored"]
        for case in ("by a new one", "by the same", "by one process", "by a state"):
            assert outcome[case], case
        assert all(outcome["weights"])
        assert outcome["slot"] == [3, LEAF]
        assert outcome["manager"] == [1]


@ranks
@pytest.mark.parametrize("name", ["adam", "lars", "keras"])
def test_v1_gradients_and_sums_are_sharded(reports: Reports, name: str) -> None:
    assert [report["in_tf_train"][name] for report in reports] == [[True, True]] * len(reports)


MESHES = ("adam", "clipnorm", "global_clipnorm", "lars")


@ranks
@pytest.mark.parametrize("name", MESHES)
def test_local_parts_of_dtensors_are_updated(reports: Reports, name: str) -> None:
    for report in reports:
        outcome = report["of_a_mesh"][name]
        # Without norms nothing depends on how a variable is cut.
        bound = 0 if name == "adam" else 2**-22
        assert outcome["variables"] <= bound
        assert outcome["slots"] <= bound
        assert outcome.get("restored", True)
        assert outcome["numerics"].endswith("gradient of 'uneven:0' : Tensor had NaN values")
        assert "'uneven:0' is sparse, and the variable a DTensor" in outcome["rows"]
        assert "'uneven:0' is a DTensor, whose gradients torch has summed" in outcome["summed"]


@ranks
def test_fully_shard_parameters_are_updated(reports: Reports) -> None:
    assert all(report["of_fully_shard"] < 1e-6 for report in reports)


@ranks
def test_loss_gradients_are_sent_to_their_shards(reports: Reports) -> None:
    first, *peers = [report["sent_while_others_are_computed"] for report in reports]
    assert first["bits"]
    assert all(peer == first for peer in peers)


@ranks
def test_equal_shape_variables_may_alternate(reports: Reports) -> None:
    assert [report["kept_from_step_to_step"] for report in reports] == [True] * len(reports)


@ranks
def test_non_contiguous_variable_is_sent_whole(reports: Reports) -> None:
    assert [report["alone_with_gaps"] for report in reports] == [True] * len(reports)


@ranks
def test_ordered_sums_have_the_bits_of_one_rank(reports: Reports) -> None:
    expected = None if len(reports) == 3 else True
    assert [report["same_bits_on_any_number"] for report in reports] == [expected] * len(reports)


def of_one(reports: Reports, name: str, rank: int) -> tuple[str, set[str]]:
    """Return the message of one rank, and the set of messages of the others."""
    messages = [report["ranks_in_trouble"][name] for report in reports]
    return messages[rank], set(messages[:rank] + messages[rank + 1 :])


@ranks
def test_a_step_that_fails_on_one_rank_fails_on_all(reports: Reports) -> None:
    text, peers = of_one(reports, "schedule", 1)
    assert text == "KeyError: 'no rate'"
    raised = "ReplicaMismatchError: rank 1 raised an error in its step: KeyError: 'no rate'. "
    assert peers == {f"{raised}Nothing has changed on any rank."}
    text, peers = of_one(reports, "constraint", 1)
    assert text == "RuntimeError: Cannot use a constraint function on a sparse variable: 'rows:0'."
    assert len(peers) == 1
    assert peers.pop().startswith("ReplicaMismatchError: rank 1 raised an error in its step: Runt")
    text, peers = of_one(reports, "resized", 1)
    assert text.startswith("InvalidArgumentError: 'cut:0' has 131072 elements now")
    assert len(peers) == 1
    assert peers.pop().startswith("ReplicaMismatchError: rank 1 raised an error before its grad")
    shapes = [report["ranks_in_trouble"]["shape"] for report in reports]
    assert shapes[0].startswith("ReplicaMismatchError: rank ")
    assert all(message.startswith("InvalidArgumentError: Gradient of") for message in shapes[1:])
    for report in reports:
        outcome = report["ranks_in_trouble"]
        assert outcome["numerics"].startswith("InvalidArgumentError: gradient of 'cut:0'")
        assert "no variable can come twice in a step: small:0" in outcome["twice"]
        assert outcome["moved"].startswith("InvalidArgumentError: 'cut:0' has strides (1, 3) now")
        assert outcome["state"].startswith("ReplicaMismatchError: rank 1 disagrees with rank 0 at")
        assert "it brings the state of an optimizer together" in outcome["state"]
        assert outcome["unchanged"]
        assert outcome["after"]


@ranks
def test_options_without_shared_slots_raise(reports: Reports) -> None:
    for report in reports:
        outcome = report["ranks_in_trouble"]
        assert "are shared out over the ranks of a strategy" in outcome["elsewhere"]
        assert "its variables are not updated by a rule alone" in outcome["by a hook"]
        assert "cannot be copied or pickled" in outcome["copied"]


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_shards_have_even_sizes(count: int) -> None:
    draw = random.Random(count)
    for _ in range(200):
        loads, total = [0] * count, 0
        for _ in range(draw.randint(1, 12)):
            size = draw.choice([0, 1, 50, 99, 100, 101, 250, draw.randint(1, 3000)])
            pieces = pieces_of(size, loads, 100)
            ends = [0, *(piece.stop for piece in pieces)]
            assert [piece.start for piece in pieces] == ends[:-1]
            assert ends[-1] == size
            assert len({piece.rank for piece in pieces}) == len(pieces)
            assert all(piece.start % 100 == 0 for piece in pieces)
            for rank, start, stop in pieces:
                loads[rank] += stop - start
            total += size
            assert max(loads) <= total / count + 100

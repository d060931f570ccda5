"""Ranks that deviate: every rank is informed, and all can continue together."""

from __future__ import annotations

from typing import Any

import pytest

Reports = list[dict[str, Any]]
COUNTS = (2, pytest.param(3, marks=pytest.mark.slow))
ranks = pytest.mark.parametrize("reports", COUNTS, indirect=True)
DIFFERS = "ReplicaMismatchError: rank {last} disagrees with rank 0 at "
RAISED = "ReplicaMismatchError: rank {last} raised an error before its {what} were there: {error}"
NO_CHANGE = ". Nothing has changed on any rank."
INT16 = "InvalidTypeError: A value is of int16, but replicas add up float32, float64, float16, "
PAIRS = "InvalidTypeError: grads_and_vars must hold pairs (gradient, variable), not (tensor("


@ranks
@pytest.mark.parametrize(
    ("case", "difference"),
    [
        ("apply and minimize", "what it does: it applies gradients vs it computes gradients."),
        (
            "apply later",
            "what it does: it applies gradients vs it computes gradients.",
        ),
        ("a value later", "what it does: it adds up values vs it computes gradients."),
        ("values of rank 0 later", "what it does: it applies gradients vs it computes gradients."),
        ("another optimizer", "momentum: 0.5 vs 0.0."),
        ("a step and a value", "what it does: it applies gradients vs it adds up values."),
        ("no pairs", "the number of variables: 0 vs 1."),
        ("values", "the number of values: 2 vs 1."),
        ("shapes", "the shape of value 0: (2, 3) vs (3, 2)."),
        ("a rate", "learning_rate: 0.25 vs 0.5."),
        ("a step", "step: 7 vs 6."),
    ],
)
def test_differences_raise_on_all_ranks(reports: Reports, case: str, difference: str) -> None:
    count = len(reports)
    for report in reports:
        words, later_message, movement = report["other_calls"][case]
        assert words == DIFFERS.format(last=count - 1) + difference
        assert (later_message, movement) == ("", [-0.5 * count] * 2)


@ranks
@pytest.mark.parametrize(
    ("case", "part", "error"), [("dtypes", "values", INT16), ("no pair", "gradients", PAIRS)]
)
def test_errors_of_a_rank_raise_on_all(reports: Reports, case: str, part: str, error: str) -> None:
    *peers, failing = (report["other_calls"][case] for report in reports)
    assert failing[0].startswith(error)
    for words, later_message, movement in (*peers, failing):
        assert (later_message, movement) == ("", [-0.5 * len(reports)] * 2)
        if words != failing[0]:
            assert words.startswith(RAISED.format(last=len(reports) - 1, what=part, error=error))
            assert words.endswith(NO_CHANGE)
    assert all(words != failing[0] for words, _, _ in peers)


@ranks
def test_hooks_run_before_the_sum(reports: Reports) -> None:
    *peers, failing = (report["hooks_before_the_sum"] for report in reports)
    assert failing[0] == "KeyError: 'hook'"
    expected = RAISED.format(last=len(reports) - 1, what="gradients", error=failing[0]) + NO_CHANGE
    assert [first for first, *_ in peers] == [expected] * len(peers)
    for _, second, w, second_value in (*peers, failing):
        assert (second, w, second_value) == ("", [-1.0 * len(reports)] * 2, [-1.0] * 2)


@ranks
def test_optimizers_without_summing_raise(reports: Reports) -> None:
    for report in reports:
        words, param = report["optimizers_of_torch"]
        assert words.startswith("FailedPreconditionError: SGD would train this replica alone")
        assert param == [-0.5, -0.5]


@ranks
def test_own_aggregators_do_not_block_other_ranks(reports: Reports) -> None:
    first, *peers = (report["own_aggregators"] for report in reports)
    assert first == ["", [-0.5, -0.5]]
    assert peers == [["KeyError: 'no batch'", [0.0, 0.0]]] * len(peers)


@ranks
def test_variables_changed_on_one_rank_raise(reports: Reports) -> None:
    count = len(reports)
    differs = DIFFERS.format(last=count - 1)
    for report in reports:
        outcome = report["variables_that_one_rank_changes"]
        shapes = "variable 0: 'w:0' float32 (3,) vs 'w:0' float32 (2,)."
        assert outcome["shape"] == [differs + shapes, "", [-2.0 * count] * 2]
        words, square = outcome["strides"]
        strides = "'square:0' float32 (2, 3) with strides (1, 2) vs 'square:0' float32 (2, 3)."
        assert words == differs + "variable 0: " + strides
        assert square == [[0.0] * 3] * 2


@ranks
@pytest.mark.parametrize("face", ["keras", "v1"])
def test_constraint_failing_on_one_rank_raises_in_the_next_step(
    reports: Reports, face: str
) -> None:
    differs = DIFFERS.format(last=len(reports) - 1) + "the bits of the values of 'w:0': "
    *peers, failing = (report["variables_that_one_rank_changes"][face] for report in reports)
    assert failing[0] == "KeyError: 'constraint'"
    for first, second, third, w in (*peers, failing):
        assert first in ("", failing[0])
        assert second.startswith(differs)
        assert (third, w) == ("", [0.5 * len(reports)] * 2)
    assert [first for first, *_ in peers] == [""] * len(peers)


@ranks
def test_failing_micro_batch_losses_raise_on_all_ranks(reports: Reports) -> None:
    *peers, bad = (report["gradients_that_fail"] for report in reports)
    assert bad[0] == "KeyError: 'no batch'"
    expected = RAISED.format(last=len(reports) - 1, what="gradients", error=bad[0]) + NO_CHANGE
    assert [first for first, *_ in peers] == [expected] * len(peers)
    assert [row[1:] for row in (*peers, bad)] == [["", [-0.5 * len(reports)] * 2]] * len(reports)


@ranks
def test_different_graphs_raise(reports: Reports) -> None:
    outcomes = [report["graphs_that_differ"] for report in reports]
    order = "variable 0: 'b:0' float32 (1,) vs 'a:0' float32 (1,)."
    for outcome in outcomes:
        assert outcome["order"] == DIFFERS.format(last=1) + order
        assert outcome["rate"] == DIFFERS.format(last=1) + "learning_rate: 1.5 vs 0.5."
        assert outcome["w"] == [-1.0 * len(reports)] * 2
        assert outcome["total"] == [1.0 * len(reports)] * 2


@ranks
@pytest.mark.parametrize("case", ["feed", "run"])
def test_run_failing_on_one_rank_raises_on_all_ranks(reports: Reports, case: str) -> None:
    *peers, failing = (report["graphs_that_differ"][case] for report in reports)
    assert "must" in failing
    raised = RAISED.format(last=len(reports) - 1, what="values", error=failing) + NO_CHANGE
    assert peers == [raised] * len(peers)


@ranks
def test_values_of_any_dtype_are_broadcast(reports: Reports) -> None:
    assert [row["other_dtypes_are_broadcast"] for row in reports] == [[True] * 4] * len(reports)


@ranks
@pytest.mark.parametrize("fault", ["batch", "loss", "nan", "shard"])
def test_ranks_take_back_the_same_steps(reports: Reports, fault: str) -> None:
    first, *others = [report["judged_steps"][fault] for report in reports]
    assert first[0] == [[25, 26, 27, 28]]
    assert others == [first] * len(others)

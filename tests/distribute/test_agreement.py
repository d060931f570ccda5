"""Ranks that do not do the same are told of it, all of them, and can go on together."""

from __future__ import annotations

from typing import Any

import pytest

Told = list[dict[str, Any]]
COUNTS = (2, pytest.param(3, marks=pytest.mark.slow))
ranks = pytest.mark.parametrize("told", COUNTS, indirect=True)
DIFFERS = "ReplicaMismatchError: rank {last} disagrees with rank 0 at "
RAISED = "ReplicaMismatchError: rank {last} raised an error before its {what} were there: {error}"
UNCHANGED = ". Nothing has changed on any rank."
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
def test_what_differs_is_told_to_all(told: Told, case: str, difference: str) -> None:
    count = len(told)
    for each in told:
        words, after, moved = each["other_calls"][case]
        assert words == DIFFERS.format(last=count - 1) + difference
        assert (after, moved) == ("", [-0.5 * count] * 2)


@ranks
@pytest.mark.parametrize(
    ("case", "what", "error"), [("dtypes", "values", INT16), ("no pair", "gradients", PAIRS)]
)
def test_what_a_rank_refuses_is_told_to_all(told: Told, case: str, what: str, error: str) -> None:
    *others, own = (each["other_calls"][case] for each in told)
    assert own[0].startswith(error)
    for words, after, moved in (*others, own):
        assert (after, moved) == ("", [-0.5 * len(told)] * 2)
        if words != own[0]:
            assert words.startswith(RAISED.format(last=len(told) - 1, what=what, error=error))
            assert words.endswith(UNCHANGED)
    assert all(words != own[0] for words, _, _ in others)


@ranks
def test_hooks_before_the_sum(told: Told) -> None:
    *others, own = (each["hooks_before_the_sum"] for each in told)
    assert own[0] == "KeyError: 'hook'"
    expected = RAISED.format(last=len(told) - 1, what="gradients", error=own[0]) + UNCHANGED
    assert [first for first, *_ in others] == [expected] * len(others)
    for _, second, w, other in (*others, own):
        assert (second, w, other) == ("", [-1.0 * len(told)] * 2, [-1.0] * 2)


@ranks
def test_optimizers_that_do_not_sum_are_refused(told: Told) -> None:
    for each in told:
        words, param = each["optimizers_of_torch"]
        assert words.startswith("FailedPreconditionError: SGD would train this replica alone")
        assert param == [-0.5, -0.5]


@ranks
def test_who_sums_by_itself_is_waited_for_by_nobody(told: Told) -> None:
    first, *others = (each["own_aggregators"] for each in told)
    assert first == ["", [-0.5, -0.5]]
    assert others == [["KeyError: 'no batch'", [0.0, 0.0]]] * len(others)


@ranks
def test_variables_that_one_rank_changes(told: Told) -> None:
    count = len(told)
    differs = DIFFERS.format(last=count - 1)
    for each in told:
        found = each["variables_that_one_rank_changes"]
        shapes = "variable 0: 'w:0' float32 (3,) vs 'w:0' float32 (2,)."
        assert found["shape"] == [differs + shapes, "", [-2.0 * count] * 2]
        words, square = found["strides"]
        strides = "'square:0' float32 (2, 3) with strides (1, 2) vs 'square:0' float32 (2, 3)."
        assert words == differs + "variable 0: " + strides
        assert square == [[0.0] * 3] * 2


@ranks
@pytest.mark.parametrize("face", ["keras", "v1"])
def test_a_constraint_that_fails_on_one_rank_is_told_in_the_next_step(
    told: Told, face: str
) -> None:
    differs = DIFFERS.format(last=len(told) - 1) + "the bits of the values of 'w:0': "
    *others, own = (each["variables_that_one_rank_changes"][face] for each in told)
    assert own[0] == "KeyError: 'constraint'"
    for first, second, third, w in (*others, own):
        assert first in ("", own[0])
        assert second.startswith(differs)
        assert (third, w) == ("", [0.5 * len(told)] * 2)
    assert [first for first, *_ in others] == [""] * len(others)


@ranks
def test_losses_of_micro_batches_that_fail(told: Told) -> None:
    *others, own = (each["gradients_that_fail"] for each in told)
    assert own[0] == "KeyError: 'no batch'"
    expected = RAISED.format(last=len(told) - 1, what="gradients", error=own[0]) + UNCHANGED
    assert [first for first, *_ in others] == [expected] * len(others)
    assert [each[1:] for each in (*others, own)] == [["", [-0.5 * len(told)] * 2]] * len(told)


@ranks
def test_graphs_that_differ(told: Told) -> None:
    found = [each["graphs_that_differ"] for each in told]
    order = "variable 0: 'b:0' float32 (1,) vs 'a:0' float32 (1,)."
    for each in found:
        assert each["order"] == DIFFERS.format(last=1) + order
        assert each["rate"] == DIFFERS.format(last=1) + "learning_rate: 1.5 vs 0.5."
        assert each["w"] == [-1.0 * len(told)] * 2
        assert each["total"] == [1.0 * len(told)] * 2


@ranks
@pytest.mark.parametrize("case", ["feed", "run"])
def test_runs_that_fail_on_one_rank(told: Told, case: str) -> None:
    *others, own = (each["graphs_that_differ"][case] for each in told)
    assert "must" in own
    raised = RAISED.format(last=len(told) - 1, what="values", error=own) + UNCHANGED
    assert others == [raised] * len(others)


@ranks
def test_values_of_any_dtype_are_broadcast(told: Told) -> None:
    assert [each["other_dtypes_are_broadcast"] for each in told] == [[True] * 4] * len(told)

"""Messages of comparisons to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bit_comparison import assert_same, note_problem


@pytest.mark.parametrize(
    ("got", "expected", "message"),
    [
        (
            torch.tensor([1.0, 1.0 + 2.0**-23]), torch.ones(2),
            r"table tensor 1 \(torch.float32, \(2,\)\): 1 of 2 differ, first at 1: "
            r"1.00000011\d+ \(3f800001\) is not 1.0 \(3f800000\), 1 ulp apart",
        ),
        (
            torch.tensor([0.0]), torch.tensor([-0.0]),
            r"first at 0: 0.0 \(00000000\) is not -0.0 \(80000000\), 0 ulp apart",
        ),
        (
            torch.tensor([1.0, torch.nan]).half(), torch.tensor([1.0, 2.0]).half(),
            r"first at 1: nan \(7e00\) is not 2.0 \(4000\), \d+ ulp apart",
        ),
        (
            torch.tensor([7, 255], dtype=torch.uint8), torch.tensor([7, 1], dtype=torch.uint8),
            r"first at 1: 255 \(ff\) is not 1 \(01\)$",
        ),
        (
            torch.tensor([True]), torch.tensor([False]),
            r"\(torch.bool, .* first at 0: True \(01\) is not False \(00\)$",
        ),
        (
            torch.tensor([1 + 2j]), torch.tensor([1 + 3j]),
            r"\(torch.complex64, \(1,\)\): 1 of 2 differ, first at 1: 2.0 \(40000000\) is not 3.0",
        ),
    ],
    ids=["float32", "sign of zero", "nan", "uint8", "bool", "complex"],
)  # fmt: skip
def test_failed_comparison_shows_index_values_and_bits(
    got: Any, expected: Any, message: str
) -> None:
    with pytest.raises(pytest.fail.Exception, match=message):
        assert_same([torch.ones(()), got], [torch.ones(()), expected], "table")
    assert_same([got], [got.clone()])


def test_failed_comparison_shows_the_rule_and_seed_of_its_test() -> None:
    note_problem("Adam", 7)
    with pytest.raises(pytest.fail.Exception, match=r"slots \(Adam, seed 7\) tensor 0"):
        assert_same([torch.zeros(1)], [torch.ones(1)], "slots")


def test_all_nan_patterns_are_equal() -> None:
    patterns = torch.tensor([0x7FC00000, 0x7F800001], dtype=torch.int32).view(torch.float32)
    assert_same([patterns], [patterns.flip(0)])


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ([], [torch.ones(1)]),
        ([torch.ones(1)], [torch.ones(2)]),
        ([torch.ones(1)], [torch.ones(1).half()]),
    ],
    ids=["count", "shape", "dtype"],
)
def test_different_layouts_of_results_fail(got: Any, expected: Any) -> None:
    with pytest.raises(AssertionError, match="table"):
        assert_same(got, expected, "table")

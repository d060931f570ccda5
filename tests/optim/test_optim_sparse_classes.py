"""Entries of each class of `thalweg.optim` in other tables, as listed in CONTRIBUTING.md."""

from __future__ import annotations

import pytest

from matrix_inputs import MATRIX_CASES
from modern_inputs import CASES
from thalweg import optim
from thalweg._cli.race.default_rates import DEFAULT_LEARNING_RATE, default_rate
from thalweg.optim.rule_names import HOMES, KINDS


def test_every_class_is_public() -> None:
    assert not {*KINDS} - {*optim.__all__}


def test_every_class_that_torch_lacks_was_recorded() -> None:
    recorded_classes = {case.cls for case in (*CASES, *MATRIX_CASES)}
    assert {*HOMES} - recorded_classes == {"Adafactor"}  # which is torch's


@pytest.mark.parametrize("problem", DEFAULT_LEARNING_RATE)
def test_every_class_races_at_a_rate(problem: str) -> None:
    assert all(default_rate(problem, f"optim:{name}", name) > 0 for name in KINDS)

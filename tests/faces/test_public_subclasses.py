"""Subclasses as the public writes them give TensorFlow's numbers, in graphs and in eager mode."""

from __future__ import annotations

import json

import numpy as np

import public_subclasses as written
from case_batches import many
from golden_files import FOLDER

RECORDED_CASES = json.loads((FOLDER / "public_subclasses.json").read_text())

# Where TensorFlow adds up in another order, or takes an approximate root or power: the distance in
# ulp of the largest element.
BOUNDS = {
    **{f"v1/{name}": 1 for name in ("bounded", "accumulating hooks")},
    **{"v1/lookahead": 3, "v1/lars": 2, "keras/clipped lamb": 2, "keras/centralized": 3},
    **{f"keras/{name}": 1 for name in ("lamb", "lamb on a schedule", "factored", "decayed Adam")},
    **{"keras/lookahead": 1, "keras/lookahead of hooks": 2, "keras/multiplied": 1},
}


@many("case", list(RECORDED_CASES))
def test_subclasses_have_tensorflow_values_and_names(case: str) -> None:
    golden, actual = RECORDED_CASES[case], written.taken(case)
    assert actual.get("name") == golden.get("name")
    assert list(actual["values"]) == list(golden["values"])
    for variable, steps in golden["values"].items():
        expected = np.array(steps, np.float32)
        distance = np.abs(np.array(actual["values"][variable], np.float32) - expected)
        bound = BOUNDS.get(case.rpartition("/")[0], 0) * np.spacing(np.abs(expected).max())
        assert distance.max() <= bound, variable


def test_every_case_is_recorded() -> None:
    assert set(RECORDED_CASES) == set(written.CASES)

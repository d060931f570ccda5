"""Layers, losses, metrics, summaries and `tf.nn` give TensorFlow's numbers and names."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tf1_cases
import thalweg.tf.compat.v1 as tf
from case_batches import many

RECORDED = json.loads((Path(__file__).parents[1] / "goldens/tf1_names.json").read_text())
CASES = sorted(tf1_cases.CASES)


def pixels(png: bytes) -> Any:
    image = pytest.importorskip("PIL.Image")
    found = np.asarray(image.open(io.BytesIO(png)))
    return found if found.ndim == 3 else found[..., None]


def test_all_cases_are_recorded() -> None:
    assert {*CASES, "tensorflow"} == set(RECORDED)


@many("name", [name for name in CASES if not name.startswith("summary")])
def test_numbers_are_those_of_tensorflow(name: str) -> None:
    agree(name, tf1_cases.measured(tf, name, None, pixels))


@many("name", [name for name in CASES if name.startswith("summary")])
def test_summaries_are_those_of_tensorflow(name: str) -> None:
    pytest.importorskip("tensorboard")
    agree(name, tf1_cases.measured(tf, name, tf.Summary, pixels))


def agree(name: str, found: dict[str, Any]) -> None:
    wanted, told = RECORDED[name], tf1_cases.told(found)
    assert set(told) == set(wanted)
    for key, each in wanted.items():
        if isinstance(each[0] if each else "", str):
            assert told[key] == each, key
            continue
        shape, norm, total = each
        assert told[key][0] == shape, key
        bound = 2e-5 * (1 + norm)
        np.testing.assert_allclose(told[key][1:], [norm, total], rtol=0, atol=bound, err_msg=key)

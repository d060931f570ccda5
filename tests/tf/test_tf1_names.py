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

GOLDENS = json.loads((Path(__file__).parents[1] / "goldens/tf1_names.json").read_text())
CASES = sorted(tf1_cases.CASES)


def pixels(png: bytes) -> Any:
    image = pytest.importorskip("PIL.Image")
    pixel_values = np.asarray(image.open(io.BytesIO(png)))
    return pixel_values if pixel_values.ndim == 3 else pixel_values[..., None]


def test_all_cases_are_recorded() -> None:
    assert {*CASES, "tensorflow"} == set(GOLDENS)


@many("name", [name for name in CASES if not name.startswith("summary")])
def test_values_equal_tensorflow(name: str) -> None:
    agree(name, tf1_cases.measured(tf, name, None, pixels))


@many("name", [name for name in CASES if name.startswith("summary")])
def test_summaries_equal_tensorflow(name: str) -> None:
    pytest.importorskip("tensorboard")
    agree(name, tf1_cases.measured(tf, name, tf.Summary, pixels))


def agree(name: str, outputs: dict[str, Any]) -> None:
    expected, texts = GOLDENS[name], tf1_cases.told(outputs)
    assert set(texts) == set(expected)
    for key, golden in expected.items():
        if isinstance(golden[0] if golden else "", str):
            assert texts[key] == golden, key
            continue
        shape, norm, total = golden
        assert texts[key][0] == shape, key
        bound = 2e-5 * (1 + norm)
        np.testing.assert_allclose(texts[key][1:], [norm, total], rtol=0, atol=bound, err_msg=key)

"""The scripts for TensorFlow 1 among the examples learn what they should."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg.tf.compat.v1 as tf

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def building() -> Iterator[None]:
    """Scripts for TensorFlow 1 build a graph."""
    tf.disable_eager_execution()
    yield
    tf.enable_eager_execution()
    tf.reset_default_graph()


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_layers_example_trains() -> None:
    assert example("tf1_mlp").main() > 0.95


def test_mlp_example_writes_summaries(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    script = example("tf1_mlp")
    script.STEPS = 20
    script.main(tmp_path)
    assert [path.stat().st_size > 1000 for path in tmp_path.iterdir()] == [True]


@pytest.mark.slow
def test_gan_example_trains_two_networks() -> None:
    np.testing.assert_allclose(example("tf1_gan").main(), [2, -1], atol=0.9)


@pytest.mark.slow
def test_autoencoder_example_trains_convolutions() -> None:
    script = example("tf1_autoencoder")
    script.STEPS = 120
    assert script.main() < 0.9


def test_word2vec_example_trains_sampled_losses() -> None:
    script = example("tf1_word2vec")
    script.STEPS = 400
    assert script.main() > 0.9

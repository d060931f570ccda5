"""Powers of a beta by repeated multiplication, and the number of steps of a power."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thalweg import Variable
from thalweg.checkpoint import tensorflow
from thalweg.checkpoint.step_inference import power_after, steps_of
from thalweg.v1.train import AdamOptimizer


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("beta", [0.9, 0.999, 0.5, 0.0, 1.0])
def test_power_after_equals_optimizer_powers(beta: float, kind: Any) -> None:
    opt, w = AdamOptimizer(0.1, kind(beta) if kind is np.float64 else beta), Variable([1.0])
    for steps in range(1, 200):
        opt.apply_gradients([(torch.ones(1), w)])
        power = opt._get_beta_accumulators()[0]
        actual = power_after(kind(beta), steps)
        assert (actual.dtype, actual) == (power.numpy().dtype, power.numpy())


@pytest.mark.parametrize(("beta", "limit"), [(0.9, 830), (0.999, 20_000), (0.5, 140)])
def test_step_count_is_recovered_from_a_power(beta: float, limit: int) -> None:
    factor = product = np.float32(beta)
    for steps in range(limit):
        if steps % 97 == 0 or steps < 50:
            assert steps_of(product, factor) == steps
        product = product * factor


@pytest.mark.parametrize(
    ("power", "beta"), [(0.0, 0.9), (0.5, 0.9), (1.0, 0.9), (1.0, 1.0), (np.nan, 0.9), (0.0, 0.0)]
)
def test_ambiguous_power_gives_no_step_count(power: float, beta: float) -> None:
    assert steps_of(np.float32(power), np.float32(beta)) is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_each_normal_power_is_below_the_one_before(dtype: Any) -> None:
    one = dtype(1)
    words = np.dtype(dtype).str.replace("f", "u")
    # Rounding is monotonic, so that the largest beta is the worst; exponents shift products alike.
    powers = np.arange((one / 2).view(words), one.view(words), dtype=words).view(dtype)
    assert (powers * np.nextafter(one, dtype(0)) < powers).all()


def test_power_after_many_steps_underflows_to_zero() -> None:
    assert power_after(np.float32(0.9), 10**15) == 0


@pytest.mark.parametrize("steps", [820, 829, 830, 840, 1000, 1100])
def test_a_long_training_is_saved_as_tensorflow_does_and_read_again(
    steps: int, tmp_path: Path
) -> None:
    w, opt = Variable([1.0], name="w"), AdamOptimizer(0.1)
    opt.apply_gradients([([1.0], w)])
    powers = opt._get_beta_accumulators()
    for power, beta in zip(powers, (np.float32(0.9), np.float32(0.999)), strict=True):
        power.assign(torch.tensor(power_after(beta, steps - 1)))
    opt.apply_gradients([([1.0], w)])
    expected = [power_after(np.float32(beta), steps) for beta in (0.9, 0.999)]
    assert [power.item() for power in powers] == expected  # below the normal numbers 0
    tensorflow.save(tmp_path / "ckpt", opt, [w], kind="tf1")
    target = Variable([0.0], name="w")
    restored_opt = tensorflow.restore(tmp_path / "ckpt", [target], learning_rate=0.1)
    assert [beta_power.item() for beta_power in restored_opt._get_beta_accumulators()] == expected

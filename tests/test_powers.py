"""Powers of a beta by repeated multiplication, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thalweg import Variable
from thalweg.checkpoint.powers import running_power, steps_of
from thalweg.v1.train import AdamOptimizer


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("beta", [0.9, 0.999, 0.5, 0.0, 1.0])
def test_powers_are_those_of_an_optimizer(beta: float, kind: Any) -> None:
    opt, w = AdamOptimizer(0.1, kind(beta) if kind is np.float64 else beta), Variable([1.0])
    for steps in range(1, 200):
        opt.apply_gradients([(torch.ones(1), w)])
        power = opt._get_beta_accumulators()[0]
        found = running_power(kind(beta), kind, steps)
        assert (found.dtype, found) == (power.numpy().dtype, power.numpy())


@pytest.mark.parametrize(("beta", "most"), [(0.9, 830), (0.999, 20_000), (0.5, 140)])
def test_a_power_tells_its_steps(beta: float, most: int) -> None:
    factor = product = np.float32(beta)
    for steps in range(most):
        if steps % 97 == 0 or steps < 50:
            assert steps_of(product, factor, np.float32) == steps
        product = product * factor


@pytest.mark.parametrize(
    ("power", "beta"), [(0.0, 0.9), (0.5, 0.9), (1.0, 0.9), (1.0, 1.0), (np.nan, 0.9), (0.0, 0.0)]
)
def test_a_power_that_tells_nothing(power: float, beta: float) -> None:
    assert steps_of(np.float32(power), np.float32(beta), np.float32) is None


def test_many_steps_take_no_time() -> None:
    assert running_power(np.float32(0.9), np.float32, 10**15) < 1e-40
    assert running_power(np.float32(1.0), np.float32, 10**15) == 1

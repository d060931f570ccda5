"""Number of steps of a checkpoint, from its powers of beta."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from thalweg.checkpoint.step_inference import beta_of, power_after, steps_and_betas, steps_of


@pytest.mark.parametrize("steps", [0, 1, 5, 100, 700])
@pytest.mark.parametrize("beta", [0.9, 0.5, 0.8, 0.999])
def test_step_count_is_the_index_of_the_power(beta: float, steps: int) -> None:
    power = np.float32(1)
    for _ in range(steps + 1):
        power = np.float32(power * np.float32(beta))
        power = np.float32(0) if power < np.finfo(np.float32).tiny else power
    assert power_after(np.float32(beta), steps) == power
    if power:
        assert steps_of(power, np.float32(beta)) == steps
        assert beta_of(power, steps) == beta
    else:
        assert steps_of(power, np.float32(beta)) is None


def test_step_count_of_long_trainings_and_float64() -> None:
    assert steps_of(power_after(np.float32(0.999), 80_000), np.float32(0.999)) == 80_000
    assert steps_of(power_after(np.float32(0.99999), 200_001), np.float32(0.99999)) == 200_001
    assert steps_of(power_after(np.float64(0.9), 3000), np.float64(0.9)) == 3000
    assert steps_of(np.float32(0.123), np.float32(0.9)) is None
    for beta in (0.0, 1.0, -0.5, np.nan):
        assert steps_of(np.float32(0.5), np.float32(beta)) is None


def _of(steps: int, dtype: Any = np.float32, **betas: float) -> dict[str, Any]:
    return {name: power_after(dtype(beta), steps) for name, beta in betas.items()}


@pytest.mark.parametrize(
    ("powers", "counters", "count", "betas", "notes"),
    [
        # The counter and the powers agree: any decimal is found.
        (_of(37, beta1=0.87, beta2=0.9973), {"global_step": 37}, 37, (0.87, 0.9973), 0),
        # No counter: usual betas are tried.
        (_of(12, beta1=0.9, beta2=0.999), {}, 12, (0.9, 0.999), 0),
        (_of(12, beta1=0.5, beta2=0.9), {}, 12, (0.5, 0.9), 0),
        (_of(12, beta1=0.73, beta2=0.999), {}, 12, (0.73, 0.999), 0),
        # A counter that counts something else is named.
        (_of(12, beta1=0.9, beta2=0.999), {"global_step": 40}, 12, (0.9, 0.999), 1),
        # beta1 has gone to 0: beta2 tells.
        (_of(3000, beta1=0.9, beta2=0.999), {}, 3000, (None, 0.999), 0),
        (_of(3000, beta1=0.9, beta2=0.999), {"global_step": 3000}, 3000, (None, 0.999), 0),
        # Both have.
        (_of(10**6, beta1=0.9, beta2=0.999), {"global_step": 10**6}, 10**6, (None, None), 0),
        (_of(10**6, beta1=0.9, beta2=0.999), {}, None, (None, None), 0),
        ({**_of(12, beta1=0.9), **_of(13, beta2=0.999)}, {}, None, (None, None), 1),
        ({"beta1": np.float32(0.123)}, {}, None, (None, None), 1),
        # Two ways to explain them: a counter chooses, else nothing does.
        (_of(9, beta1=0.25, beta2=0.9999), {}, None, (None, None), 1),
        (_of(9, beta1=0.25, beta2=0.9999), {"global_step": 9}, 9, (0.25, 0.9999), 0),
        (_of(19, beta1=0.5, beta2=0.99995), {"global_step": 19}, 19, (0.5, 0.99995), 0),
        (_of(9, beta1=0.25), {}, None, (None, None), 1),
        (_of(9, beta1=0.25, beta2=0.999), {}, 9, (0.25, 0.999), 0),
        (_of(1, beta1=0.5, beta2=0.99), {}, 1, (0.5, 0.99), 0),
        ({}, {"global_step": 9}, 9, (None, None), 0),
    ],
)
def test_powers_determine_steps_and_betas(
    powers: dict[str, Any],
    counters: dict[str, int],
    count: int | None,
    betas: tuple[float | None, float | None],
    notes: int,
) -> None:
    inferred = steps_and_betas(powers, counters)
    assert inferred.count == count
    assert (inferred.betas.get("beta1"), inferred.betas.get("beta2")) == betas
    assert len(inferred.notes) == notes


def test_excessive_step_count_is_not_searched() -> None:
    powers = _of(3, beta1=0.9, beta2=0.999)
    assert steps_and_betas(powers, {"global_step": 2**62}).count == 3


def test_float64_betas_stay_float64() -> None:
    powers = _of(5, np.float64, beta1=0.9, beta2=0.999)
    inferred = steps_and_betas(powers, {"global_step": 5})
    assert {type(beta) for beta in inferred.betas.values()} == {np.float64}

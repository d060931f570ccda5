"""Steps of AdamW with second moments in codes, beside those with float32, over random gradients."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from case_batches import many
from quantized_rules import decode_array, encode_array
from thalweg import optim
from thalweg._engines.codecs import CODECS, OF_SLOTS
from thalweg._engines.codecs.dither import dithers_of
from thalweg._engines.codecs.records import decode_tensor, encode_tensor

# Bounds of the largest step and of the mean of the last ones, in those of float32.
UPPER, LOWER = 3.0, 1 / 3
# Gradients that come every 55 or 89 steps, numbers of Fibonacci, and are 0 between meet nearly the
# same dither each time: it moves by 1 / (5**0.5 * 89) from one to the next. Until it goes round, in
# 5**0.5 * 89**2 = 18,000 steps, the code may miss all of them and fall. With a beta2 of 0.9999 it
# falls to exp(-0.9) = 0.4 of what it is in that time, from a code that is too low already.
MOST_AT_FIBONACCI = 5.0
FINAL = 200  # steps
# A mean of float32 below this many rates is not measured by its ratio: the momentum has codes, too.
FLOOR = 0.02
# A gradient below this share of its block's largest may take smaller steps; see `Codec.least`.
SHARE = 1 / 50


def one_history(kind: str, steps: int, rng: Any) -> Any:
    """Return the gradients of one element, of magnitude 1 in most of the kinds."""
    index, noise = np.arange(steps), rng.standard_normal(steps)
    shape = np.ones(steps) if rng.random() < 0.5 else noise
    begin = rng.integers(steps // 8, steps // 2)
    if kind == "ramp":
        return (index + 1) / steps * shape
    if kind == "late":
        return (index >= begin) * shape
    if kind == "late ramp":
        return np.clip((index - begin) / (steps - begin), 0, 1) * shape
    if kind == "burst":
        return np.where(rng.random(steps) < 0.003, 30, 1) * noise
    if kind == "fall":
        return np.where(index < begin, 1, 10.0 ** -rng.uniform(0.3, 3)) * shape
    if kind == "periodic":
        period = rng.choice([2, 3, 8, 21, 64, 100])
        return (index % period == rng.integers(period)) * 1.0
    if kind == "sparse":
        return (rng.random(steps) < rng.choice([0.5, 0.1, 0.03])) * noise
    if kind == "zeros":
        return np.zeros(steps)
    return shape


KINDS = ("ramp", "late", "late ramp", "burst", "fall", "periodic", "sparse", "zeros", "steady")


def histories(steps: int, elements: int, seed: int) -> Any:
    """Return gradients (steps, elements), six orders of magnitude apart, the first of a block 1."""
    rng = np.random.default_rng(seed)
    gradients = np.empty((steps, elements), np.float32)
    for k in range(elements):
        kind = "steady" if k % 32 == 0 else KINDS[rng.integers(len(KINDS))]
        size = 1.0 if k % 32 == 0 else 10.0 ** -rng.uniform(0, 2.2 if rng.random() < 0.7 else 6)
        gradients[:, k] = size * one_history(kind, steps, rng)
    return gradients


def steps_of(gradients: Any, storage: Any, beta2: float) -> tuple[Any, Any]:
    """Return for each element its largest step and the mean of its last ones, in rates."""
    count = gradients.shape[1]
    param = torch.nn.Parameter(torch.zeros(count))
    optimizer = optim.AdamW(
        [param], lr=1.0, betas=(0.9, beta2), weight_decay=0.0, state_storage=storage
    )
    largest, mean = torch.zeros(count), torch.zeros(count)
    for step, gradient in enumerate(gradients):
        param.data.zero_()
        param.grad = torch.from_numpy(gradient)
        optimizer.step()
        size = param.detach().abs()
        largest = torch.maximum(largest, size)
        if step >= len(gradients) - FINAL:
            mean += size / FINAL
    return largest.numpy(), mean.numpy()


@lru_cache(maxsize=1)
def wide_steps(steps: int, elements: int, seed: int, beta2: float) -> tuple[Any, Any, Any]:
    """Return gradients, and the results of `steps_of` with float32 for them."""
    gradients = histories(steps, elements, seed)
    return gradients, *steps_of(gradients, None, beta2)


def check(storage: Any, steps: int, elements: int, seed: int, beta2: float) -> None:
    gradients, wide, wide_mean = wide_steps(steps, elements, seed, beta2)
    largest, mean = steps_of(gradients, storage, beta2)
    assert (largest <= UPPER * wide + 1e-6).all()
    assert (mean <= UPPER * np.maximum(wide_mean, FLOOR)).all()
    recent = np.sqrt((gradients[-FINAL:].astype(np.float64) ** 2).mean(0)).reshape(-1, 32)
    block = CODECS["dynamic8_positive" if "dynamic8" in str(storage) else "root8"].block
    peaks = recent.reshape(-1, block).max(1).repeat(block)
    is_large = (recent.reshape(-1) >= peaks * SHARE) & (wide_mean > FLOOR)
    assert is_large.sum() > elements / 8
    assert (mean >= LOWER * wide_mean)[is_large].all()


POSITIVE = [codec for codec in OF_SLOTS.values() if codec.positive]
STORAGES = ["8bit", "dynamic8", *({"exp_avg": "float32", "exp_avg_sq": x.name} for x in POSITIVE)]


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_steps_are_near_those_of_float32(storage: Any) -> None:
    check(storage, 2500, 4096, 1, 0.999)


@pytest.mark.slow
@pytest.mark.parametrize(("beta2", "seed"), [(0.95, 2), (0.999, 3), (0.9999, 4)])
@many("storage", STORAGES)
def test_long_trainings_are_near_those_of_float32(storage: Any, beta2: float, seed: int) -> None:
    check(storage, 6000, 4096, seed, beta2)


@pytest.mark.slow
@pytest.mark.parametrize(("period", "beta2"), [(55, 0.9999), (89, 0.999)])
def test_fibonacci_period_gradients_do_not_bias(period: int, beta2: float) -> None:
    rng = np.random.default_rng(period)
    sizes = 10.0 ** -rng.uniform(0, 2, 4096)
    sizes[::32] = 1
    gradients = np.zeros((6000, 4096), np.float32)
    for k, size in enumerate(sizes):
        gradients[rng.integers(period) if k % 32 else 0 :: period if k % 32 else 1, k] = size
    wide, wide_mean = steps_of(gradients, None, beta2)
    largest, mean = steps_of(gradients, "8bit", beta2)
    assert (largest <= MOST_AT_FIBONACCI * wide).all()
    assert (mean <= MOST_AT_FIBONACCI * wide_mean).all()


@pytest.mark.parametrize("codec", POSITIVE, ids=lambda codec: codec.name)
def test_positive_number_never_encodes_as_0(codec: Any) -> None:
    numbers = np.full(codec.block, 1e-30, np.float32)
    numbers[0], numbers[5] = 1.0, 0.0
    for step in range(100):
        records = encode_array(codec, numbers, dithers_of(codec.block, step))
        decoded = decode_array(codec, records, codec.block)
        assert ((decoded > 0) == (numbers > 0)).all()
    values = torch.from_numpy(numbers)
    decoded = decode_tensor(codec, encode_tensor(codec, values), values)
    assert torch.equal(decoded > 0, values > 0)


@pytest.mark.parametrize("codec", OF_SLOTS.values(), ids=lambda x: x.name)
def test_mean_of_dithered_codes_is_the_number(codec: Any) -> None:
    """To a 250th of the distance between two codes, over as many steps."""
    top = decode_array(codec, encode_array(codec, np.ones(codec.block, np.float32)), codec.block)
    numbers = np.linspace(0.3, 0.9, codec.block, dtype=np.float32)
    numbers[0] = top[0]
    if not codec.positive:
        numbers[1::2] *= -1
    mean, steps = np.zeros(codec.block), 1000
    for step in range(steps):
        records = encode_array(codec, numbers, dithers_of(codec.block, step))
        mean += decode_array(codec, records, codec.block) / steps
    # Codes are even in roots and shares: of two of them the mean is a little off.
    np.testing.assert_allclose(mean, numbers, rtol=3e-4)


def test_steps_without_step_number_use_the_nearest_code() -> None:
    assert (dithers_of(5, -1) == 0.5).all()


def test_dithers_of_a_run_of_steps_are_spread_evenly() -> None:
    """By the golden ratio, no gap between sorted dithers is much wider than the mean gap."""
    dithers = np.sort([float(dithers_of(3, step)[2]) for step in range(1000)])
    assert np.diff(dithers).max() < 3 / 1000

"""The sums of products that diagnostics have, beside the same told element by element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from case_batches import many
from thalweg._engines.diagnostic_sums import sums_of_products
from thalweg._engines.reduction_order import LEAF

SIZES = (1, 31, 512, 513, 5000, LEAF + 700)


def drawn(size: int, scale: float, seed: int) -> Any:
    values = np.random.default_rng(seed).standard_normal(size) * scale
    return values.astype(np.float32)


def added_plainly(first: Any, second: Any) -> list[float]:
    """Sum in plain loops, with numbers that NumPy rounds one by one."""
    leaves: list[float] = []
    for leaf in range(0, len(first), LEAF):
        lanes = [np.float64(0.0)] * 32
        for start in range(leaf, min(leaf + LEAF, len(first)), 512):
            block = slice(start, min(start + 512, leaf + LEAF, len(first)))
            parts = [array[block] for array in (first, second)]
            largest = [float(abs(array).max()) for array in parts]
            powers = [min(max(math.frexp(x)[1] - 1, -100), 100) if x else -100 for x in largest]
            a, b = (x * np.float32(2.0**-p) for x, p in zip(parts, powers, strict=True))
            for column in range(32):
                total = np.float32(0.0)
                for x, y in zip(a[column::32], b[column::32], strict=True):
                    total += x * y
                lanes[column] += np.float64(total) * 2.0 ** sum(powers)
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [x + y for x, y in zip(lanes[:half], lanes[half:], strict=True)]
        leaves.append(float(lanes[0]))
    return leaves


@many("size", SIZES)
@many("scale", (1.0, 1e-30, 1e30))
def test_sums_have_the_documented_order(size: int, scale: float) -> None:
    first, second = drawn(size, scale, 0), drawn(size, 1.0, 1)
    first[:: max(size // 7, 1)] *= np.float32(2.0**-9)
    pairs = {"square": ("a", "a"), "product": ("a", "b")}
    sums = sums_of_products({"a": first, "b": second}, pairs)
    of_tensors = sums_of_products({"a": torch.tensor(first), "b": torch.tensor(second)}, pairs)
    for name, pair in pairs.items():
        args = [{"a": first, "b": second}[key] for key in pair]
        assert sums[name].tolist() == added_plainly(*args), name
        assert of_tensors[name].tolist() == sums[name].tolist(), name


@many("scale", (1.0, 1e-36, 1e-12, 1e12, 1e37))
@many("size", SIZES)
def test_sums_of_squares_do_not_overflow_or_underflow(size: int, scale: float) -> None:
    array = drawn(size, scale, 2)
    sums = sums_of_products({"a": array}, {"square": ("a", "a")})
    exact = math.fsum(float(x) ** 2 for x in array)
    # Sixteen roundings of float32 at most, each of half a unit, and one of the product.
    assert sums["square"].sum() == pytest.approx(exact, rel=17 * 2.0**-24)


@many("number", (math.inf, -math.inf, math.nan))
def test_a_nonfinite_value_stays_in_its_leaf(number: float) -> None:
    array = drawn(2 * LEAF, 1.0, 3)
    array[LEAF + 5] = number
    sums = sums_of_products({"a": array}, {"square": ("a", "a")})
    first, second = sums["square"]
    assert math.isfinite(first)
    assert math.isnan(second) if math.isnan(number) else second == math.inf


def test_sums_of_float64_stay_float64() -> None:
    array = drawn(700, 1.0, 4).astype(np.float64) * 1e100
    sums = sums_of_products({"a": array}, {"square": ("a", "a")})
    assert sums["square"][0] == pytest.approx(math.fsum(x * x for x in array), rel=1e-14)
